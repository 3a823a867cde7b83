"""Explains which turns wait for a pause, a circuit breaker or a service's limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from api_client.contract.counters import clean_label
from api_client.contract.turn import TurnState
from api_client.pauses.pause import BREAKER, INTAKE, LIMIT, Pause
from api_client.workers.reason import Obstacle, Reason, UnfinishedTurn, Wait


class PauseObstacle(Obstacle):
    """Explains whether a turn has to wait for a pause, an open circuit breaker or a busy model service."""

    def __init__(self, pauses: Iterable[Pause]) -> None:
        self._pauses = {each.field: each for each in pauses}

    def explain_hold(self, row: UnfinishedTurn, at: float) -> Wait | None:
        """Return why a pause or a busy service makes a turn wait, or None if the turn need not wait."""
        return None if row.stop else self._find_pause(row, at) or _find_full_service(row, at)

    def _find_pause(self, row: UnfinishedTurn, at: float) -> Wait | None:
        names = ["queue|check"]
        if row.state is TurnState.QUEUED:
            limit = row.held_back.partition(" ")[0]  # only the workers' settings may name the service
            names = ["queue|run", f"owner|{row.owner}", f"key|{row.key}", f"model|{row.runs}"]
            names += [limit] if limit.startswith(f"{LIMIT}|") else []
            names.append(f"{BREAKER}|{row.runs}")
        pause = next((self._pauses[name] for name in names if name in self._pauses), None)
        if pause is None:
            return None
        wait = wait_for(pause, at)
        if pause.what != BREAKER:
            return wait
        if row.probes == clean_label(pause.name) or (pause.until <= at and not pause.probing):
            return None  # the turn tries the service now or may do so next
        return replace(wait, until=0.0) if pause.probing else wait


def _find_full_service(row: UnfinishedTurn, at: float) -> Wait | None:
    limited, _, service = row.held_back.partition(" ")[0].partition("|")
    if limited != LIMIT or row.state is not TurnState.QUEUED:
        return None
    return Wait(reason=Reason.SERVICE, at=at, subject=service)


def find_pause_waits(pauses: Iterable[Pause], at: float) -> list[Wait]:
    """Return the reasons why turns wait: paused intake, open circuit breakers and services without credit."""
    shown = [each for each in pauses if each.what in {BREAKER, INTAKE} or each.spent]
    return [wait_for(each, at) for each in sorted(shown, key=lambda each: each.field)]


def wait_for(pause: Pause, at: float) -> Wait:
    """Return why and since when a pause, circuit breaker or limit makes turns wait."""
    limit = "credit" if pause.spent else LIMIT
    reason, subject = {
        BREAKER: (BREAKER, pause.name),
        LIMIT: (limit, pause.name),
        INTAKE: (INTAKE, pause.by or "?"),
    }.get(pause.what, ("pause", pause.title))
    return Wait(reason=Reason(reason), at=at, subject=subject, said=pause.reason, until=pause.until)

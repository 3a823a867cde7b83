"""The whole history of a turn, for people and bug reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.event_kinds import AttemptLost, AttemptStarted
from api_client.contract.events import Event
from api_client.contract.process_exit import ProcessExit
from api_client.workers.reports import find_exit

FORMAT = "helix-turns.export/1"


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """The death or freeze of a worker process while it was working on a turn.

    ``at`` is the time of the detection, in seconds since the epoch. ``cause`` is what the supervisor saw, or empty.
    """

    delivery: int
    worker: str
    during: str
    at: float
    silent_seconds: float
    cause: str = ""
    signal: str = ""
    exit_code: int | None = None


def find_deaths(events: Iterable[Event], exits: Sequence[ProcessExit] = ()) -> list[WorkerDeath]:
    """Return every death of a worker during a turn, oldest first, without planned hand-overs."""
    workers: dict[int, str] = {}
    found = []
    for event in events:
        match event.body:
            case AttemptStarted() as started:
                workers[started.delivery] = started.worker
            case AttemptLost() as lost if lost.during != "shutdown":
                worker = workers.get(lost.delivery, "")
                silent = lost.silent_ms / 1000
                seen = find_exit(exits, worker, heard=event.at - silent, missed=event.at)
                how = (str(seen), seen.signal, seen.code) if seen else ("", "", None)
                found.append(WorkerDeath(lost.delivery, worker, lost.during, event.at, silent, *how))
    return found


async def export_turn(client: TurnsClient, turn_id: str, *, owner: str | None = None) -> dict[str, Any]:
    """Return a turn's record, attempts and events, with prompts and answers, as a JSON-ready dict."""
    turn = await client.reader.read_turn(turn_id, owner=owner)
    attempts = await client.reader.read_attempts(turn_id, owner=owner)
    return {
        "format": FORMAT,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "turn": {**turn.to_dict(), "messages": list(turn.request.messages), "metadata": turn.request.metadata},
        "attempts": [attempt.to_dict() for attempt in attempts],
        "events": [event.to_dict() for event in await client.reader.read_events(turn_id)],
    }

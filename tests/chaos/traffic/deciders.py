"""Who decides on the suspended turns of a chaos run.

A decision is sent again under its own id until a relay says yes or no; now and then a second person decides otherwise
at the same time. Which of the two counted is for the checker to see.
"""

import asyncio
import functools
import random
from collections import Counter
from pathlib import Path

import httpx2

from tests.chaos.traffic import escalations, phase_repertoire
from tests.chaos.traffic.clients import PAUSE_SECONDS, Clients, Hear, code_of
from tests.chaos.traffic.plan import PlannedTurn

#: decision -> what a second person decides at the same time. Nobody decides against an edit: it changes the files.
_RIVAL = {"approve": "reject", "reject": "approve", "retry": "approve"}
_RIVALS = 0.5


class Deciders:
    """All who decide; ``root`` is HELIX_ROOT, where they edit the files of a suspended phase."""

    def __init__(self, clients: Clients, seed: int, root: Path) -> None:
        self._clients = clients
        self._recorder = clients.recorder
        self._draw = random.Random(f"deciders {seed}")
        self._root = root
        self._suspended: Counter[str] = Counter()

    def hearing(self, turn: PlannedTurn, turn_id: str, decisions: tuple[str, ...]) -> Hear:
        """Who follows the turn and decides on it each time it is suspended; the last decision repeats, none is none."""
        return functools.partial(self._hear, turn, turn_id, decisions)

    def _hear(self, turn: PlannedTurn, turn_id: str, decisions: tuple[str, ...], event: str, event_id: str) -> None:
        if event != "turn.suspended" or not decisions:
            return
        kind = decisions[min(self._suspended[turn.key], len(decisions) - 1)]
        self._suspended[turn.key] += 1
        decision = f"{turn.key}@{event_id.partition('-')[0]}"
        phase = turn.way == "phase"
        self._clients.begin(self._decide(turn_id, kind, decision, self._draw.uniform(0.2, 3.0), phase=phase))
        if kind in _RIVAL and self._draw.random() < _RIVALS:
            self._clients.begin(
                self._decide(turn_id, _RIVAL[kind], f"{decision}-rival", self._draw.uniform(0.2, 3.0), phase=phase)
            )

    async def _decide(self, turn_id: str, kind: str, decision: str, after: float, *, phase: bool) -> None:
        await asyncio.sleep(after)
        told: dict[str, str] = {"turn": turn_id, "decision": decision, "kind": kind}
        body = {"decision": kind, "decision_id": decision, "for": decision, "note": f"decision {decision}"}
        if kind == "edit" and phase:
            if not await self._edit(turn_id):
                return
            told["wrote"] = phase_repertoire.EDITED
        elif kind == "edit":
            told["wrote"] = body["text"] = escalations.EDITED
        while True:
            self._recorder.write("decide", "invoke", **told)
            url = f"{self._clients.relay()}/v1/inbox/{turn_id}/decision"
            try:
                answer = await self._clients.http.post(url, json=body)
            except httpx2.HTTPError as error:
                self._recorder.write("decide", "info", **told, error=type(error).__name__)
            else:
                if answer.is_success:
                    self._recorder.write("decide", "ok", **told)
                    return
                refused = answer.status_code < httpx2.codes.INTERNAL_SERVER_ERROR
                self._recorder.write("decide", "fail" if refused else "info", **told, error=code_of(answer))
                if refused:
                    return
            await asyncio.sleep(PAUSE_SECONDS)

    async def _edit(self, turn_id: str) -> bool:
        """Repair the files of a suspended phase where the inbox says they are; False when it is suspended no more."""
        while True:
            try:
                answer = await self._clients.http.get(f"{self._clients.relay()}/v1/inbox/{turn_id}")
                if answer.is_success:
                    shown = answer.json()
                    if shown["state"] != "suspended":
                        return False
                    (self._root / shown["proposal"]["files"] / phase_repertoire.FILE).write_text(
                        phase_repertoire.EDITED, encoding="utf-8"
                    )
                    return True
            except httpx2.HTTPError as error:
                self._recorder.write("client", "info", error=type(error).__name__)
            await asyncio.sleep(PAUSE_SECONDS)

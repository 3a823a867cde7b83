"""The users of phases in a chaos run: they hand phases in, follow them, and decide when one is parked.

A decision is sent again under its own id until a relay says yes or no; now and then a second person decides otherwise
at the same time. Which of the two counted is for the checker to see.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from worker.chaos.clients import PAUSE_SECONDS, Clients, code_of
from worker.chaos.phase_repertoire import ANSWERS, EDITED, FILE, PHASES, phase
from worker.chaos.plan import PlannedSession, PlannedTurn
from worker.chaos.repertoire import message

#: decision -> what a second person decides at the same time. Nobody decides against an edit: it changes the files.
_RIVAL = {"approve": "reject", "reject": "approve", "retry": "approve"}
_RIVALS = 0.5


class PhaseLoad:
    """Users of folders of phases; ``root`` is HELIX_ROOT, where they edit the files of a parked phase."""

    def __init__(self, clients: Clients, seed: int, root: Path) -> None:
        self._clients = clients
        self._recorder = clients.recorder
        self._draw = random.Random(f"deciders {seed}")  # noqa: S311 - who decides when, no secret
        self._root = root
        self._parked: Counter[str] = Counter()

    async def carry(self, session: PlannedSession) -> None:
        """Hand a folder's phases in: all at once, or one when the one before it has ended."""
        for turns in [session.turns] if session.hasty else [(turn,) for turn in session.turns]:
            turn_ids = await self._submit(session, turns)
            followed = []
            for turn, turn_id in zip(turns, turn_ids, strict=False):
                self._clients.accompany(turn, turn_id)
                hear = functools.partial(self._hear, turn, turn_id)
                followed.append(self._clients.begin(self._clients.follow(turn_id, hear)))
            if followed and not session.hasty:
                await asyncio.wait(followed)

    async def _submit(self, session: PlannedSession, turns: Sequence[PlannedTurn]) -> list[str]:
        """Hand phases in, again and again under the same key until a relay says yes or no."""
        numbers = {turn.key: number for number, turn in enumerate(session.turns)}
        body = {
            "directory": session.chat,
            "phases": [phase(numbers[turn.key], turn.kind, message(turn.key, turn.kind)) for turn in turns],
            "escalation": PHASES[turns[-1].kind].escalation(),
        }
        while True:
            relay = self._clients.relay()
            self._write(session, turns, "invoke", relay=relay)
            try:
                answer = await self._clients.http.post(
                    f"{relay}/v1/phases", json=body, headers={"Idempotency-Key": turns[0].key}
                )
            except httpx2.HTTPError as error:
                self._write(session, turns, "info", error=type(error).__name__)
            else:
                if answer.status_code == httpx2.codes.ACCEPTED:
                    turn_ids = [str(one["turn_id"]) for one in answer.json()["data"]]
                    for turn, turn_id in zip(turns, turn_ids, strict=True):
                        self._write(session, [turn], "ok", turn=turn_id)
                    return turn_ids
                refused = answer.status_code < httpx2.codes.INTERNAL_SERVER_ERROR
                self._write(session, turns, "fail" if refused else "info", error=code_of(answer))
                if refused:
                    return []
            await asyncio.sleep(PAUSE_SECONDS)

    def _write(self, session: PlannedSession, turns: Sequence[PlannedTurn], type_: str, **facts: Any) -> None:
        for turn in turns:
            told = {"key": turn.key, "chat": session.chat, "kind": turn.kind, "way": turn.way, "answers": list(ANSWERS)}
            self._recorder.write("submit", type_, **told, **facts)

    def _hear(self, turn: PlannedTurn, turn_id: str, event: str, event_id: str) -> None:
        """A follower's event: a parked phase is decided on, each parking once."""
        decisions = PHASES[turn.kind].decisions
        if event != "turn.parked" or not decisions:
            return
        kind = decisions[min(self._parked[turn.key], len(decisions) - 1)]
        self._parked[turn.key] += 1
        decision = f"{turn.key}@{event_id.partition('-')[0]}"
        self._clients.begin(self._decide(turn_id, kind, decision, self._draw.uniform(0.2, 3.0)))
        if kind in _RIVAL and self._draw.random() < _RIVALS:
            self._clients.begin(self._decide(turn_id, _RIVAL[kind], f"{decision}-rival", self._draw.uniform(0.2, 3.0)))

    async def _decide(self, turn_id: str, kind: str, decision: str, after: float) -> None:
        await asyncio.sleep(after)
        told: dict[str, str] = {"turn": turn_id, "decision": decision, "kind": kind}
        if kind == "edit":
            if not await self._edit(turn_id):
                return
            told["wrote"] = EDITED
        body = {"decision": kind, "decision_id": decision, "by": decision, "note": f"decision {decision}"}
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
        """Mend the files of a parked phase where the inbox says they are; False when it is parked no more."""
        while True:
            try:
                answer = await self._clients.http.get(f"{self._clients.relay()}/v1/inbox/{turn_id}")
                if answer.is_success:
                    shown = answer.json()
                    if shown["state"] != "parked":
                        return False
                    (self._root / shown["proposal"]["files"] / FILE).write_text(EDITED, encoding="utf-8")
                    return True
            except httpx2.HTTPError as error:
                self._recorder.write("client", "info", error=type(error).__name__)
            await asyncio.sleep(PAUSE_SECONDS)

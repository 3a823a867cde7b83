"""The users of phases in a chaos run: they hand phases in, follow them, and decide when one is suspended."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2

from tests.chaos.traffic.clients import PAUSE_SECONDS, Clients, code_of
from tests.chaos.traffic.deciders import Deciders
from tests.chaos.traffic.phase_repertoire import ANSWERS, PHASES, phase
from tests.chaos.traffic.plan import PlannedSession, PlannedTurn
from tests.chaos.traffic.repertoire import message


class PhaseLoad:
    """Users of folders of phases."""

    def __init__(self, clients: Clients, deciders: Deciders) -> None:
        self._clients = clients
        self._recorder = clients.recorder
        self._deciders = deciders

    async def carry(self, session: PlannedSession) -> None:
        """Hand a folder's phases in: all at once, or one when the one before it has ended."""
        for turns in [session.turns] if session.hasty else [(turn,) for turn in session.turns]:
            turn_ids = await self._submit(session, turns)
            followed = []
            for turn, turn_id in zip(turns, turn_ids, strict=False):
                self._clients.accompany(turn, turn_id)
                hear = self._deciders.hearing(turn, turn_id, PHASES[turn.kind].decisions)
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

"""The client process of helix-turns: ``python -m tests.lab.bench.turns.our_client HOST PORT MODEL [--follow]``."""

import asyncio
import sys
from typing import Any
from uuid import uuid4

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings, load_settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.lab.bench.load import loop, work
from tests.lab.bench.load.system import System

_OUTCOMES = {work.REJECTED: Outcome.PASSED_AFTER_RETRY.value}


class Ours(System):
    """``TurnsClient``: every turn in a session of its own."""

    def __init__(self, settings: Settings, model: str) -> None:
        self.pattern = Keys(settings.namespace).wake_up_channel("*")
        self._client = TurnsClient(settings)
        self._model = model
        self._sessions: dict[str, str] = {}

    def new_id(self) -> str:
        session = f"bench-{uuid4().hex}"
        turn = self._client.submitter.create_turn_id()
        self._sessions[turn] = session
        return turn

    async def submit(self, turn: str, kind: str) -> None:
        message = {"role": "user", "content": kind}
        request = TurnRequest(model=self._model, messages=(message,), session_id=self._sessions.pop(turn))
        await self._client.submitter.submit(request, turn_id=turn)

    def began(self, event: dict[str, Any]) -> bool:
        return event["kind"] == "attempt.started"

    def said(self, event: dict[str, Any]) -> int:
        return len(event["data"]["text"]) if event["kind"] == "attempt.output" else 0

    def ended(self, event: dict[str, Any]) -> bool:
        return event["kind"] == "turn.finished"

    def right(self, kind: str, last: dict[str, Any]) -> bool:
        return last["data"]["outcome"] == _OUTCOMES.get(kind, Outcome.PASSED.value)

    async def stored(self, turn: str, kind: str) -> bool:
        attempts = await self._client.reader.read_attempts(turn)
        answer = (await self._client.reader.read_turn(turn)).response
        return len(attempts) == len(work.ANSWERS[kind]) and bool(answer)

    async def follow(self, turn: str) -> None:
        async for _ in self._client.reader.follow_turn(turn):
            pass


async def main(host: str, port: int, model: str, follows: bool) -> None:
    await loop.run(Ours(load_settings(), model), host, port, follows=follows)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], "--follow" in sys.argv))

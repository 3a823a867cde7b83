"""Our side: ``turns worker`` and ``TurnsClient``."""

from __future__ import annotations

import time
from uuid import uuid4

from api_client.client import TurnsClient
from api_client.contract.turn import TurnRequest
from tests.bench.side import Side
from tests.bench.work import Kind, stream_message
from worker.processes import programs
from worker.processes.program import Program


class Ours(Side):
    """Real workers, the inline runner, a real client: submit, then follow until turn.finished."""

    name = "ours"

    def workers(self) -> list[Program]:
        return programs.workers(self.settings)

    async def open(self) -> None:
        self._client = TurnsClient(self.settings)

    async def close(self) -> None:
        await self._client.close()

    async def turn(self, kind: Kind) -> None:
        turn_id = await self._client.submit(_request(kind.message))
        ended = None
        async for event in self._client.follow(turn_id):
            ended = event or ended
        if ended is None or ended.data.get("outcome") != kind.outcome.value:
            raise RuntimeError(f"turn {turn_id} did not end as {kind.outcome.value}: {ended}")

    async def stream(self, count: int) -> tuple[float, int]:
        started = time.perf_counter()
        turn_id = await self._client.submit(_request(stream_message(count)))
        times = [
            time.perf_counter()
            async for event in self._client.follow(turn_id)
            if event and event.kind == "attempt.output"
        ]
        return times[-1] - started, len(times)


def _request(message: str) -> TurnRequest:
    return TurnRequest(
        model="bench", messages=({"role": "user", "content": message},), session_id=f"bench-{uuid4().hex}"
    )

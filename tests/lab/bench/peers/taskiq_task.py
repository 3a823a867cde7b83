"""One taskiq task a turn, on Redis streams with acknowledgement."""

from __future__ import annotations

from taskiq_redis import RedisStreamBroker

from tests.lab.bench.peers.ledger import URL, AsyncLedger
from tests.lab.bench.peers.turn import play_async

broker = RedisStreamBroker(url=URL)
_ledger = AsyncLedger()


@broker.task(task_name="taskiq.turn")
async def turn(name: str, kind: str) -> None:
    await play_async(_ledger, name, kind)

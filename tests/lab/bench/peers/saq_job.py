"""One SAQ job a turn."""

from __future__ import annotations

import os
from typing import Any

from saq import Queue

from tests.lab.bench.load import work
from tests.lab.bench.peers.ledger import URL, AsyncLedger
from tests.lab.bench.peers.turn import play_async

queue = Queue.from_url(URL)
_ledger = AsyncLedger()


async def turn(_: Any, *, name: str, kind: str) -> None:
    await play_async(_ledger, name, kind)


#: How the worker is started (``saq tests.lab.bench.peers.saq_job.settings``).
settings = {
    "queue": queue,
    "functions": [turn],
    "concurrency": int(os.environ.get("BENCH_SLOTS", "50")),
}


async def enqueue(name: str, kind: str) -> None:
    """Submit a turn. Without a limit on its time: the default is 10 s."""
    await queue.enqueue("turn", name=name, kind=kind, timeout=work.HELD_SECONDS * 2)

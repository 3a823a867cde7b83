"""The client process of a peer: ``python -m tests.lab.bench.peers.client ROW HOST PORT``."""

import asyncio
import importlib
import itertools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio

from tests.lab.bench.load import loop, work
from tests.lab.bench.load.system import System
from tests.lab.bench.peers.ledger import URL

Submit = Callable[[str, str], Awaitable[None]]
_ENGINES = {"dbos": "dbos_workflow", "procrastinate": "procrastinate_job", "restate": "restate_handler"}


class Peer(System):
    pattern = "events:*"

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._redis = redis.asyncio.Redis.from_url(URL)
        self._numbers = itertools.count()

    def new_id(self) -> str:
        return f"{os.getpid()}-{next(self._numbers)}"

    async def submit(self, turn: str, kind: str) -> None:
        await self._submit(turn, kind)

    def began(self, event: dict[str, Any]) -> bool:
        return event["kind"] == "started"

    def said(self, event: dict[str, Any]) -> int:
        return len(event["text"]) if event["kind"] == "said" else 0

    def ended(self, event: dict[str, Any]) -> bool:
        return event["kind"] == "done"

    def right(self, kind: str, last: dict[str, Any]) -> bool:
        return last["attempts"] == len(work.ANSWERS[kind])

    async def stored(self, turn: str, kind: str) -> bool:
        attempts = await self._redis.llen(f"attempts:{turn}")
        answer = await self._redis.get(f"answer:{turn}")
        return attempts == len(work.ANSWERS[kind]) and answer == work.answer(kind, attempts).encode()


async def submitter(row: str) -> Submit:
    """How a turn is submitted in this row. Blocking libraries block: they answer in less than a thread costs."""
    if row == "celery-chain":
        from tests.lab.bench.peers.celery_chain import links

        async def submit(turn: str, kind: str) -> None:
            links(turn, kind, 1).apply_async()

    elif row == "celery-task":
        from tests.lab.bench.peers import celery_task

        async def submit(turn: str, kind: str) -> None:
            celery_task.turn.delay(turn, kind)

    elif row == "dramatiq":
        from tests.lab.bench.peers import dramatiq_actor

        async def submit(turn: str, kind: str) -> None:
            dramatiq_actor.turn.send(turn, kind)

    elif row == "taskiq":
        from tests.lab.bench.peers import taskiq_task

        await taskiq_task.broker.startup()

        async def submit(turn: str, kind: str) -> None:
            await taskiq_task.turn.kiq(turn, kind)

    elif row == "saq":
        from tests.lab.bench.peers import saq_job

        await saq_job.queue.connect()

        async def submit(turn: str, kind: str) -> None:
            await saq_job.enqueue(turn, kind)

    else:
        engine = importlib.import_module(f"tests.lab.bench.peers.{_ENGINES[row]}")
        opened: Submit = await engine.open_client()
        return opened

    return submit


async def main(row: str, host: str, port: int) -> None:
    await loop.run(Peer(await submitter(row)), host, port)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

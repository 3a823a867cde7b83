"""The yardstick: a plain Celery chain, as short as it can be written, on the same queues with the same options."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import redis.asyncio as aioredis
from celery import Celery, chain

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE, celery_settings
from tests.bench.side import Side
from tests.bench.work import CHANNEL, ENDED, Kind
from worker.processes import programs
from worker.processes.program import Program

_REPOSITORY = Path(__file__).parents[2]


class Plain(Side):
    """A plain Celery chain, whose last task publishes the answer; one pattern subscription hears all of them."""

    name = "plain"

    def workers(self) -> list[Program]:
        """Our two Celery workers with the other application: the same queues, pools, slots and options."""
        return [
            replace(
                worker,
                command=[part.replace("worker.app", "tests.bench.plain_app") for part in worker.command],
                environ={**(worker.environ or {}), "PYTHONPATH": str(_REPOSITORY)},
            )
            for worker in programs.workers(self.settings)
        ]

    async def open(self) -> None:
        self._celery = Celery("plain-client", set_as_current=False)
        self._celery.conf.update(celery_settings(self.settings))
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._heard: dict[str, asyncio.Queue[str]] = {}
        self._redis = aioredis.Redis.from_url(self.broker.url)
        self._bell = self._redis.pubsub(ignore_subscribe_messages=True)
        await self._bell.psubscribe(CHANNEL + "*")
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._bell.aclose()  # type: ignore[no-untyped-call]
        await self._redis.aclose()
        self._thread.shutdown()

    async def _read(self) -> None:
        async for message in self._bell.listen():
            self._heard[message["channel"].decode().removeprefix(CHANNEL)].put_nowait(message["data"].decode())

    async def turn(self, kind: Kind) -> None:
        turn = uuid4().hex
        heard = self._heard[turn] = asyncio.Queue()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._submit, turn, kind)
        await heard.get()
        del self._heard[turn]

    def _submit(self, turn: str, kind: Kind) -> None:
        links = []
        for number, answer in enumerate(kind.answers, 1):
            before = ("",) if number == 1 else ()  # later runs get what the link before returned
            links.append(self._celery.signature("plain.run", (*before, turn, answer), queue=RUN_QUEUE))
            links.append(self._celery.signature("plain.validate", (turn, number == kind.runs), queue=CHECK_QUEUE))
        chain(*links).apply_async(retry=False)

    async def stream(self, count: int) -> tuple[float, int]:
        turn = uuid4().hex
        heard = self._heard[turn] = asyncio.Queue()
        started = time.perf_counter()
        self._celery.send_task("plain.stream", (turn, count), queue=RUN_QUEUE)
        times = []
        while await heard.get() != ENDED:
            times.append(time.perf_counter())
        del self._heard[turn]
        return times[-1] - started, len(times)

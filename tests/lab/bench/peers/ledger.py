"""What every peer writes: each attempt before the next, the answer before the last event, events over pub/sub."""

import json
import os
from typing import Any

import redis
import redis.asyncio

from tests.lab.bench.load import work

#: Where the store is; the bench sets it.
URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379/0")


def _event(kind: str, data: dict[str, Any]) -> str:
    return json.dumps({"kind": kind, **data})


class Ledger:
    """For workers of threads and processes."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(URL)

    def publish(self, turn: str, kind: str, **data: Any) -> None:
        """Tell whoever listens to the turn."""
        self._redis.publish(f"events:{turn}", _event(kind, data))

    def keep_attempt(self, turn: str, number: int, text: str, ok: bool) -> None:
        """Store what an attempt said and how it was judged."""
        self._redis.rpush(f"attempts:{turn}", _event("attempt", {"number": number, "text": text, "ok": ok}))

    def keep_answer(self, turn: str, text: str) -> None:
        """Store the turn's answer."""
        self._redis.set(f"answer:{turn}", text)


class AsyncLedger:
    """For workers of one event loop."""

    def __init__(self) -> None:
        self._redis = redis.asyncio.Redis.from_url(URL)

    async def publish(self, turn: str, kind: str, **data: Any) -> None:
        await self._redis.publish(f"events:{turn}", _event(kind, data))

    async def keep_attempt(self, turn: str, number: int, text: str, ok: bool) -> None:
        await self._redis.rpush(f"attempts:{turn}", _event("attempt", {"number": number, "text": text, "ok": ok}))

    async def keep_answer(self, turn: str, text: str) -> None:
        await self._redis.set(f"answer:{turn}", text)


def said(kind: str, text: str) -> list[str]:
    """What an agent says at once: its whole answer, or piece after piece."""
    return work.pieces(text) if kind == work.STREAM else [text]

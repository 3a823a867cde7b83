"""Remembers Open WebUI's last request, so that ``turns openwebui check`` can report wrong settings."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.keys import Keys
from api_client.store import Store

#: Delay before a relay writes the same features again.
_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """The features of a request from Open WebUI: the headers present, and the number of offered tools."""

    task: bool
    chat: bool
    message: bool
    user: bool
    tools: int


class OpenWebUIRequests:
    """Stores which features the latest request from Open WebUI used."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._key = Keys(store.namespace).openwebui_seen
        self._last: tuple[SeenRequest | None, float] = (None, 0.0)

    async def record_request(self, seen: SeenRequest) -> None:
        """Store which features a request from Open WebUI used. Raises ``StoreUnavailable``."""
        last, at = self._last
        if seen == last and time.monotonic() - at < _EVERY_SECONDS:
            return
        fields: dict[Any, Any] = {name: int(value) for name, value in asdict(seen).items()}
        await self._ask(self._redis.hset(self._key, mapping=fields | {"at": int(time.time())}))
        self._last = (seen, time.monotonic())

    async def read_last(self) -> tuple[SeenRequest, float] | None:
        """Return the latest stored request and its time in seconds since the epoch, or None."""
        found = {name.decode(): int(value) for name, value in (await self._ask(self._redis.hgetall(self._key))).items()}
        if not found:
            return None
        had = {name: bool(found.get(name)) for name in ("task", "chat", "message", "user")}
        return SeenRequest(**had, tools=found.get("tools", 0)), float(found.get("at", 0))

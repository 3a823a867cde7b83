"""Readers of a turn through this relay, and the end of a page's turn when its last reader leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.turn import TurnRequest
from api_client.web.bodies.ask import USER_MESSAGE

log = structlog.get_logger(__name__)


class Readers:
    """The readers of one relay. ``grace_seconds`` 0: a turn is never cancelled because its reader left."""

    def __init__(self, client: TurnsClient, grace_seconds: float) -> None:
        self._client = client
        self._grace_seconds = grace_seconds
        self._reading: Counter[str] = Counter()
        self._stops: dict[str, asyncio.Task[None]] = {}  # a cancel that comes unless somebody reads the turn again

    def here(self, turn_id: str) -> bool:
        """True while somebody reads the turn through this relay."""
        return self._reading[turn_id] > 0

    @contextmanager
    def reading(self, turn_id: str) -> Iterator[None]:
        """Somebody reads the turn: a stop that was to come is cancelled."""
        self._reading[turn_id] += 1
        if stop := self._stops.pop(turn_id, None):
            stop.cancel()
            log.info("stop.called_off", turn_id=turn_id)
        try:
            yield
        finally:
            self._reading[turn_id] -= 1
            if not self._reading[turn_id]:
                del self._reading[turn_id]

    def left(self, turn_id: str, owner: str) -> None:
        """The reader of a page left before the end. Unless somebody reads the turn again in time, it is cancelled."""
        if self._grace_seconds and not self.here(turn_id) and turn_id not in self._stops:
            self._stops[turn_id] = asyncio.create_task(self._stop(turn_id, owner))

    async def moved_on(self, turn_id: str, request: TurnRequest) -> None:
        """Something else is asked in the chat: its earlier turns that nobody reads are cancelled now.

        That are those that were stopped, and those whose stream was lost, with this relay or another. Two models that
        answer the same message are both left alone. Raises ``StoreUnavailable``: the store does not answer.
        """
        for earlier in await self._client.sessions.unfinished(turn_id, request.session_id):
            stopped = self._stops.pop(earlier, None)
            if stopped:
                stopped.cancel()
            elif not await self._unread(earlier, request):
                continue
            await self._client.canceller.cancel(earlier, owner=request.owner)
            log.info("stop.moved_on", turn_id=earlier)

    async def _unread(self, turn_id: str, request: TurnRequest) -> bool:
        if self.here(turn_id):
            return False
        with suppress(TurnNotFound):
            asked = (await self._client.reader.get(turn_id, owner=request.owner)).request.metadata.get(USER_MESSAGE)
            ours = request.metadata.get(USER_MESSAGE)
            return bool(asked and ours) and asked != ours and not await self._client.reader.followers(turn_id)
        return False

    def close(self) -> None:
        """Cancel every stop that is to come: the relay ends, the turns go on."""
        for stop in self._stops.values():
            stop.cancel()
        self._stops.clear()

    async def _stop(self, turn_id: str, owner: str) -> None:
        await asyncio.sleep(self._grace_seconds)
        self._stops.pop(turn_id, None)
        try:
            if await self._client.reader.followers(turn_id):
                return  # through another relay, or in a terminal
            await self._client.canceller.cancel(turn_id, owner=owner)
        except StoreUnavailable as error:
            log.warning("stop.failed", turn_id=turn_id, error=type(error).__name__)
            return
        log.info("stop.cancelled", turn_id=turn_id)

"""Counts the readers of each turn, and cancels turns whose page was closed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.turn import TurnRequest
from api_client.web.bodies.chat_request import USER_MESSAGE_ID

log = structlog.get_logger(__name__)


class TurnReaders:
    """Counts the readers of turns at one relay, and cancels turns that nobody reads any longer.

    With ``grace_seconds`` 0, a turn without readers is never cancelled.
    """

    def __init__(self, client: TurnsClient, grace_seconds: float) -> None:
        self._client = client
        self._grace_seconds = grace_seconds
        self._reader_counts: Counter[str] = Counter()
        self._pending_cancels: dict[str, asyncio.Task[None]] = {}  # pending cancels, which a new reader calls off

    def has_reader(self, turn_id: str) -> bool:
        """Return True if at least one client is reading the turn through this relay."""
        return self._reader_counts[turn_id] > 0

    @contextmanager
    def track_reader(self, turn_id: str) -> Iterator[None]:
        """Count one more reader of the turn within the ``with`` block, and drop any pending cancellation."""
        self._reader_counts[turn_id] += 1
        if stop := self._pending_cancels.pop(turn_id, None):
            stop.cancel()
            log.info("stop.called_off", turn_id=turn_id)
        try:
            yield
        finally:
            self._reader_counts[turn_id] -= 1
            if not self._reader_counts[turn_id]:
                del self._reader_counts[turn_id]

    def reader_left(self, turn_id: str, owner: str) -> None:
        """Cancel the turn after a grace period, unless a reader returns by then."""
        if self._grace_seconds and not self.has_reader(turn_id) and turn_id not in self._pending_cancels:
            self._pending_cancels[turn_id] = asyncio.create_task(self._cancel_later(turn_id, owner))

    async def cancel_superseded(self, turn_id: str, request: TurnRequest) -> None:
        """Cancel earlier, unread turns of a chat, because the chat has asked another question.

        Two models that answer the same message do not cancel each other. Raises ``StoreUnavailable``.
        """
        for earlier in await self._client.sessions.list_unfinished(turn_id, request.session_id):
            stopped = self._pending_cancels.pop(earlier, None)
            if stopped:
                stopped.cancel()
            elif not await self._is_unread(earlier, request):
                continue
            await self._client.canceller.cancel(earlier, owner=request.owner)
            log.info("stop.moved_on", turn_id=earlier)

    async def _is_unread(self, turn_id: str, request: TurnRequest) -> bool:
        if self.has_reader(turn_id):
            return False
        with suppress(TurnNotFound):
            asked = (await self._client.reader.read_turn(turn_id, owner=request.owner)).request.metadata.get(
                USER_MESSAGE_ID
            )
            ours = request.metadata.get(USER_MESSAGE_ID)
            return bool(asked and ours) and asked != ours and not await self._client.reader.count_followers(turn_id)
        return False

    def close(self) -> None:
        """Drop all pending cancellations when the relay stops, so that the turns continue."""
        for stop in self._pending_cancels.values():
            stop.cancel()
        self._pending_cancels.clear()

    async def _cancel_later(self, turn_id: str, owner: str) -> None:
        await asyncio.sleep(self._grace_seconds)
        self._pending_cancels.pop(turn_id, None)
        try:
            if await self._client.reader.count_followers(turn_id):
                return  # read through another relay or in a terminal
            await self._client.canceller.cancel(turn_id, owner=owner)
        except StoreUnavailable as error:
            log.warning("stop.failed", turn_id=turn_id, error=type(error).__name__)
            return
        log.info("stop.cancelled", turn_id=turn_id)

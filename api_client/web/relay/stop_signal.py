"""Ends the waits of requests when the relay stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from api_client.contract.errors import HelixError

_T = TypeVar("_T")


class RelayStopping(HelixError):
    """Raised when the relay stops while a request follows a turn. The turn continues."""

    code = "stream_lost"


class StopSignal:
    """Tells all waiting requests of a relay that the relay stops."""

    def __init__(self) -> None:
        self._is_set = False
        self._waits: set[asyncio.Timeout] = set()

    def set(self) -> None:
        """End all waits, now and in the future. Call this on the event loop's thread."""
        if not self._is_set:
            self._is_set = True
            for wait in self._waits:
                wait.reschedule(0)

    async def await_unless_stopped(self, step: Awaitable[_T]) -> _T:
        """Return the result of ``step``. Raises ``RelayStopping`` if the relay stops first."""
        try:
            async with asyncio.timeout(0 if self._is_set else None) as wait:
                self._waits.add(wait)
                try:
                    return await step
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if wait.expired():
                raise RelayStopping("the relay is stopping") from None
            raise

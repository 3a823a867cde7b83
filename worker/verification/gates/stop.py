"""Stops gates and the verifier, also when their coroutine is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from worker.runners.base import Stop

T = TypeVar("T")


@dataclass(slots=True)
class StopRequest:
    """A request to stop a check. Setting ``reason`` makes the request."""

    reason: str = ""
    lease_ends: float = math.inf


class CheckInterrupted(Exception):
    """Raised when a check was stopped, after all its processes have ended. The message is the reason."""


@dataclass(slots=True)
class _CombinedStop:
    outer: Stop
    own: str = ""

    @property
    def reason(self) -> str:
        return self.own or self.outer.reason

    @property
    def lease_ends(self) -> float:
        return self.outer.lease_ends

    @property
    def in_doubt(self) -> bool:
        return not self.own and getattr(self.outer, "in_doubt", False)


async def run_in_thread(work: Callable[[Stop], T], stop: Stop | None = None) -> T:
    """Run blocking work in a thread and return the result. On cancellation, stop the work and wait for its end."""
    either = _CombinedStop(stop or StopRequest())
    running = asyncio.ensure_future(asyncio.to_thread(work, either))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        either.own = "cancelled"
        with contextlib.suppress(Exception):
            await running
        raise

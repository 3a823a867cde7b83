"""Being asked to stop, as gates and verifier see it; and blocking work that stops when its coroutine is cancelled."""

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
    """A stop request outside a turn: it comes when ``reason`` is set, and there is no lease that could end."""

    reason: str = ""
    lease_ends: float = math.inf


class CheckStopped(Exception):
    """The check was asked to stop, so there is nothing to report; the message is the reason. No process is left."""


@dataclass(slots=True)
class _Either:
    """Stops for the outer request, or for our own."""

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


async def in_thread(work: Callable[[Stop], T], stop: Stop | None = None) -> T:
    """Do blocking work in a thread; when this is cancelled, ask the work to stop and wait until it has.

    The work looks at the stop request it gets, which looks at ``stop`` too.
    """
    either = _Either(stop or StopRequest())
    running = asyncio.ensure_future(asyncio.to_thread(work, either))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        either.own = "cancelled"
        with contextlib.suppress(Exception):
            await running
        raise

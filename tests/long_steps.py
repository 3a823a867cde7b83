"""Detects steps of a worker's event loop that compute for too long, so that a test of the engine fails.

No limit is a time that a slow or busy machine could break. What a step does in Python is counted in calls. The
processor time of one call into C, or of a loop without calls, is compared with a fixed piece of work on the same
machine, and counts only when the same function does it again and again. On the machine of record both limits are about
50 ms, as ``worker/turns/loops/__init__.py`` reports them, and the longest step of a turn takes a twentieth of that.
"""

import sys
import time
import traceback
from asyncio.events import Handle
from collections import Counter
from functools import cache
from types import CodeType, FrameType
from typing import Any

#: What one step may do: calls of functions, and returns from them. The longest step of a turn has 4,400.
MOST_CALLS = 60_000
#: So often a function may keep the processor for as long as ``MOST_WORK`` pieces of work take.
FORGIVEN = 2
MOST_WORK = 10
_STEP: CodeType = Handle._run.__code__


def piece_of_work() -> int:
    """Compute the unit in which processor time is measured, about 5 ms on the machine of record."""
    return sum(number * number for number in range(120_000))


class LongSteps:
    """Watches the steps of an event loop. Call ``watch`` and ``leave`` in one of the steps."""

    def __init__(self) -> None:
        self._calls = 0
        self._limit = self._last = 0.0
        self._many: list[str] = []
        self._long: Counter[str] = Counter()

    async def watch(self) -> None:
        """Begin to watch the thread that calls this method."""
        self._limit = MOST_WORK * _seconds_of_a_piece()
        self._last = time.thread_time()
        sys.setprofile(self._see)

    async def leave(self) -> None:
        sys.setprofile(None)

    def found(self) -> list[str]:
        """Return what computed for too long, and where."""
        again = [f"{name}, {times} times" for name, times in self._long.items() if times > FORGIVEN]
        return self._many + again

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        now = time.thread_time()
        if event == "call" and frame.f_code is _STEP:
            self._calls = 0
        elif now - self._last > self._limit:
            self._long[f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}) keeps the processor"] += 1
        self._calls += 1
        if self._calls == MOST_CALLS:
            self._many.append(f"{MOST_CALLS} calls in one step\n" + "".join(_ours(frame)))
        self._last = time.thread_time()


@cache
def _seconds_of_a_piece() -> float:
    """Return the processor time of a piece of work here, the best of several tries."""
    tries = []
    for _ in range(5):
        began = time.thread_time()
        piece_of_work()
        tries.append(time.thread_time() - began)
    return min(tries)


def _ours(frame: FrameType) -> list[str]:
    stack = traceback.format_stack(frame)
    return [line for line in stack if "/worker/" in line or "/tests/" in line][-6:]

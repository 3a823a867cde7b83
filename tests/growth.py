"""Tells whether work grows with the size of its input or with its square, on a machine of any speed."""

import gc
import sys
import time
from collections.abc import Callable

#: Twice the input costs twice the time when work is linear and four times when it is quadratic.
MOST_GROWTH = 3.0
#: Seconds of CPU below which a clock measures nothing but itself.
NOISE = 0.02
TRIES = 5


def assert_linear(work: Callable[[int], object]) -> None:
    """Assert that ``work(2)`` costs about twice the CPU time of ``work(1)``.

    Another program may disturb a measurement, so the best of several pairs counts. ``work`` takes the size as a factor
    and keeps no result from one call for the next.
    """
    pairs = []
    for _ in range(TRIES):
        once, twice = _cpu(work, 1), _cpu(work, 2)
        if twice < MOST_GROWTH * once + NOISE:
            return
        pairs.append((round(once, 3), round(twice, 3)))
    raise AssertionError(f"twice the input never cost less than {MOST_GROWTH} times the CPU time: {pairs}")


def _cpu(work: Callable[[int], object], size: int) -> float:
    """Return the CPU seconds of this thread, without garbage collection, which walks over earlier tests' objects."""
    gc.disable()
    try:
        start = time.thread_time()
        work(size)
        return time.thread_time() - start
    finally:
        gc.enable()


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, a piece of work calls: the same on a machine of any speed."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls

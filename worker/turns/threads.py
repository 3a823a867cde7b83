"""The threads of a worker process: for work that blocks, so that the event loop never does.

Three small pools, so that one kind of work does not wait for another: agents' runs that block, judging, and files.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Folders are prepared and published by so many at once.
_FILES = 4


class Threads:
    """The pools. A thread is made when it is first needed, and kept."""

    def __init__(self, runs: int, checks: int) -> None:
        self._runs = ThreadPoolExecutor(max(1, runs), "run")
        self._checks = ThreadPoolExecutor(max(1, checks), "check")
        self._files = ThreadPoolExecutor(_FILES, "files")

    async def runs(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What takes as long as an agent."""
        return await _in(self._runs, work, *args, **kwargs)

    async def checks(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Judging: here, or in one of the children that all these threads share."""
        return await _in(self._checks, work, *args, **kwargs)

    async def files(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Short work with files, or with the broker."""
        return await _in(self._files, work, *args, **kwargs)

    def close(self) -> None:
        """Take no more work. What is at work goes on."""
        for pool in (self._runs, self._checks, self._files):
            pool.shutdown(wait=False)


async def _in(pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    context = contextvars.copy_context()  # log lines name the turn
    call = functools.partial(context.run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(pool, call)

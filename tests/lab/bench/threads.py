"""Short work handed to a thread: our threads beside ``ThreadPoolExecutor``. ``python -m tests.lab.bench.threads``."""

import asyncio
import contextvars
import functools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from worker.turns.loops.threads import Threads

_CALLS, _ROUNDS, _THREADS = 6000, 5, 4
_Hand = Callable[[Callable[[], object]], Awaitable[object]]


def _work() -> None:
    os.stat("/tmp")  # noqa: PTH116 - as short as a call can be that leaves the interpreter


async def _cpu_us(hand: _Hand, in_flight: int) -> float:
    """Processor time of the process for one call, in microseconds."""

    async def one_after_the_other() -> None:
        for _ in range(_CALLS // in_flight):
            await hand(_work)

    began = time.process_time()
    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    return (time.process_time() - began) / _CALLS * 1e6


async def _measure() -> dict[tuple[int, str], list[float]]:
    pool, ours, loop = ThreadPoolExecutor(_THREADS), Threads(1), asyncio.get_running_loop()

    async def by_pool(work: Callable[[], object]) -> object:
        return await loop.run_in_executor(pool, functools.partial(contextvars.copy_context().run, work))

    found = defaultdict[tuple[int, str], list[float]](list)
    for _ in range(_ROUNDS):
        for in_flight in (1, 20, 50):
            found[in_flight, "ours"].append(await _cpu_us(ours.do_file_work, in_flight))
            found[in_flight, "ThreadPoolExecutor"].append(await _cpu_us(by_pool, in_flight))
    return found


def main() -> None:
    print("| in flight | threads | CPU us a call |\n|---|---|---|")
    for (in_flight, name), seen in sorted(asyncio.run(_measure()).items()):
        print(f"| {in_flight} | {name} | {statistics.median(seen):.0f} |")


if __name__ == "__main__":
    main()

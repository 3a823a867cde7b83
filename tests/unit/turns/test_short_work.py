"""Short work with files runs in threads: the loop waits for none of it, and hears of whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator

import pytest

from tests.support import wait_until
from worker.turns.loops.threads import Threads

TURN = contextvars.ContextVar("TURN", default="")


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(1, 1)
    yield made
    made.close()


async def test_its_result_and_its_error_come_back(threads: Threads) -> None:
    assert await threads.files(int, "12", base=3) == 5
    with pytest.raises(ZeroDivisionError):
        await threads.files(lambda: 1 / 0)
    assert await threads.files(lambda: threading.current_thread().name) == "files_1", "the thread lives on"


async def test_log_lines_of_it_name_its_turn(threads: Threads) -> None:
    TURN.set("t0-a")
    assert await threads.files(TURN.get) == "t0-a"


async def test_four_are_at_work_at_once_and_a_fifth_waits(threads: Threads) -> None:
    begun, go = list[str](), threading.Event()

    def work(name: str) -> str:
        begun.append(name)
        go.wait(60)
        return threading.current_thread().name

    waiting = [asyncio.create_task(threads.files(work, str(number))) for number in range(5)]
    await wait_until(lambda: len(begun) == 4)
    await asyncio.sleep(0)
    assert begun == ["0", "1", "2", "3"]
    go.set()
    assert set(await asyncio.gather(*waiting)) == {f"files_{number}" for number in (1, 2, 3, 4)}


async def test_who_no_longer_waits_disturbs_nobody(threads: Threads) -> None:
    begun, go, trouble = threading.Event(), threading.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))

    def work() -> threading.Thread:
        begun.set()
        go.wait(60)
        return threading.current_thread()

    waiting = asyncio.create_task(threads.files(work))
    await wait_until(begun.is_set)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await threads.files(int) == 0, "another thread is at work meanwhile"
    go.set()
    assert len({await threads.files(threading.current_thread) for _ in range(20)}) <= 2
    assert trouble == []


async def test_when_it_is_closed_its_threads_end(threads: Threads) -> None:
    thread = await threads.files(threading.current_thread)
    threads.close()
    await wait_until(lambda: not thread.is_alive())

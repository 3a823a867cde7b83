"""The worker's event loop: what holds it up is reported, and what may hold it up fails the tests of the engine."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.blocking import nothing_blocks
from tests.long_steps import FORGIVEN, MOST_CALLS
from worker.turns.loops.loop import BLOCKED_SECONDS, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    made.start()
    yield made
    made.close()


def do(loop: Loop, *calls: Callable[[], object]) -> None:
    async def work(call: Callable[[], object]) -> None:
        call()

    for call in calls:
        loop.result_of(work(call))
    loop.result_of(work_of_nothing())  # the loop has looked around since


async def work_of_nothing() -> None:
    pass


def test_what_holds_up_the_loop_for_50_ms_is_reported_once_and_shown_for_a_minute(loop: Loop) -> None:
    with capture_logs() as lines:
        for _ in range(2):
            do(loop, lambda: time.sleep(1.5 * BLOCKED_SECONDS))
    [line] = [line for line in lines if line["event"] == "loop.blocked"]
    assert line["seconds"] >= BLOCKED_SECONDS
    assert loop.worst_block >= 1.5 * BLOCKED_SECONDS


def test_a_loop_that_waits_is_not_held_up(loop: Loop) -> None:
    woken = threading.Event()
    waits = 40 * BLOCKED_SECONDS  # longer than a busy machine holds anybody up
    loop.later(waits, woken.set)
    assert woken.wait(60)
    assert loop.worst_block < waits


def test_work_begun_at_one_moment_wakes_the_loop_once_and_is_done_in_order(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        goes_on.wait(60)

    async def work(number: int) -> None:
        done.append(number)

    running = loop._running
    woken: list[object] = []
    wake = running.call_soon_threadsafe
    running.call_soon_threadsafe(hold)
    assert held.wait(60)
    monkeypatch.setattr(running, "call_soon_threadsafe", lambda *words: woken.append(words) or wake(*words))
    for number in range(5):
        loop.begin(partial(work, number))
    assert not loop.wait_idle(0)
    goes_on.set()
    assert loop.wait_idle(60)
    loop.begin(partial(work, 5))
    assert loop.wait_idle(60)
    assert (done, len(woken)) == ([0, 1, 2, 3, 4, 5], 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda folder: (folder / "file").write_text("x"),
        lambda folder: (folder / "folder").mkdir(),
        lambda folder: list(folder.iterdir()),
        lambda folder: subprocess.run(["true"], check=True),
    ],
    ids=["write", "mkdir", "list", "process"],
)
def test_a_call_that_may_block_fails_a_test_of_the_engine(
    loop: Loop, tmp_path: Path, call: Callable[[Path], object]
) -> None:
    with pytest.raises(AssertionError, match="held up"), nothing_blocks(loop):
        do(loop, lambda: call(tmp_path))
    with nothing_blocks(loop):
        do(loop, lambda: None)


def many_calls() -> None:
    for number in range(MOST_CALLS):
        divmod(number, 7)


def one_long_call() -> None:
    sum(range(20_000_000))


def loop_without_calls() -> None:
    number = 0
    while number < 5_000_000:
        number += 1


@pytest.mark.parametrize(
    ("call", "times"), [(many_calls, 1), (one_long_call, FORGIVEN + 1), (loop_without_calls, FORGIVEN + 1)]
)
def test_a_computation_that_keeps_the_loop_for_long_fails_a_test_of_the_engine(
    loop: Loop, call: Callable[[], None], times: int
) -> None:
    with pytest.raises(AssertionError, match=call.__name__), nothing_blocks(loop):
        do(loop, *[call] * times)


def test_a_step_that_is_held_up_by_a_busy_machine_now_and_then_is_forgiven(loop: Loop) -> None:
    with nothing_blocks(loop):
        do(loop, *[one_long_call] * FORGIVEN, *[loop_without_calls] * FORGIVEN)

"""The worker's event loop: what holds it up is reported, and what may hold it up fails the tests of the engine."""

import asyncio
import contextlib
import contextvars
import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis.exceptions import ConnectionError as StoreAwayError
from redis.exceptions import ReadOnlyError
from structlog.testing import capture_logs

from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.turns.record.claim import LeaseClaim
from tests.blocking import nothing_blocks
from tests.long_steps import FORGIVEN, MOST_CALLS
from tests.support import wait_for, wait_until
from worker.runners.base import AgentEvent
from worker.turns.event_writer import EventWriter
from worker.turns.leases import lease
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.reaper import Reaper
from worker.turns.loops.loop import BLOCKED_SECONDS, Loop
from worker.turns.loops.polling_loop import PollingLoop
from worker.turns.loops.threads import Threads


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
        loop.run_and_wait(work(call))
    loop.run_and_wait(work_of_nothing())  # the loop has looked around since


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
    loop.call_later(waits, woken.set)
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
        loop.start_work(partial(work, number))
    assert not loop.wait_idle(0)
    goes_on.set()
    assert loop.wait_idle(60)
    loop.start_work(partial(work, 5))
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


# The engine's threads outlive what goes wrong in them, and none of them keeps it to itself.

#: Nobody listens there, and nobody asks: what would ask is replaced.
SETTINGS = Settings(
    store_url="redis://127.0.0.1:1/0", broker_url="redis://127.0.0.1:1/0", lease_seconds=0.5, reap_seconds=0.05
)


def claimed() -> LeaseClaim:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="turn-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return LeaseClaim(turn, ChainTask(RUN, 1), "token", time.monotonic(), 60.0)


@pytest.mark.parametrize("fault", [ReadOnlyError("no"), ValueError("damaged"), RuntimeError("a fault of ours")])
def test_a_reaper_that_fails_looks_again(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    reaper, looks = Reaper(SETTINGS, "w", lambda *_: None), itertools.count(1)
    seen = 0

    async def look() -> None:
        nonlocal seen
        seen = next(looks)
        raise fault

    monkeypatch.setattr(reaper, "poll", look)
    watch = PollingLoop([reaper])
    watch.start()
    wait_for(lambda: seen > 2)
    watch.close()


def test_a_watcher_says_after_each_poll_when_the_next_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = Reaper(SETTINGS, "w", lambda *_: None)
    polls: list[float] = []

    async def poll() -> None:
        polls.append(rests.seconds)
        rests.seconds = 0.001 if len(polls) < 3 else 3600.0

    monkeypatch.setattr(rests, "poll", poll)
    watch = PollingLoop()
    watch.start()
    rests.seconds = 3600.0
    watch.add_watcher(rests)
    wait_for(lambda: len(polls) == 3)
    watch.close()
    assert polls == [3600.0, 0.001, 0.001]


def keeper_of(monkeypatch: pytest.MonkeyPatch, renew: Any) -> LeaseKeeper:
    keeper = LeaseKeeper(SETTINGS, "w")
    monkeypatch.setattr(keeper._beats, "renew_leases", renew)
    return keeper


def test_a_round_that_fails_ends_neither_the_thread_nor_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = itertools.count(1)
    seen = 0

    def renew(claims: list[LeaseClaim]) -> dict[str, tuple[str, str]]:
        nonlocal seen
        seen = next(rounds)
        if seen % 2:
            raise RuntimeError("a fault of ours")
        return {claim.token: ("held", "") for claim in claims}

    keeper = keeper_of(monkeypatch, renew)
    keeper.start()
    with keeper.hold_lease(claimed()):
        wait_for(lambda: seen > 4)
    keeper.close()


def test_a_store_that_was_away_is_asked_again_long_before_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0

    def renew(claims: list[LeaseClaim]) -> dict[str, tuple[str, str]]:
        nonlocal rounds
        rounds += 1
        if rounds <= 5:  # with a whole period between them, the lease would be over
            raise StoreAwayError
        return {claim.token: ("held", "") for claim in claims}

    keeper = LeaseKeeper(replace(SETTINGS, lease_seconds=4.0), "w")
    monkeypatch.setattr(keeper._beats, "renew_leases", renew)
    keeper.start()
    with capture_logs() as lines, keeper.hold_lease(claimed()) as held:
        wait_for(lambda: held.reason or rounds > 5)  # asked all the time, as a run asks
        assert held.reason == ""
    keeper.close()
    assert [line["event"] for line in lines] == ["lease.beat_failed"], "said once, not in each round"


def test_of_one_round_each_lease_learns_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"held": ("held", ""), "lost": ("fenced", ""), "called off": ("held", "cancelled"), "odd": ("damaged", "")}
    keeper = keeper_of(monkeypatch, lambda claims: said)
    claims = []
    for token in said:
        claim = claimed()
        claim.token = token
        claims.append(claim)
    with contextlib.ExitStack() as stack:
        leases = {claim.token: stack.enter_context(keeper.hold_lease(claim)) for claim in claims}
        before = {token: lease.lease_ends for token, lease in leases.items()}
        keeper._renew_leases([*leases.values()], time.monotonic())
        assert {token: lease.reason for token, lease in leases.items()} == {
            "held": "",
            "lost": "fenced",
            "called off": "cancelled",
            "odd": "",
        }
        kept = {token for token, lease in leases.items() if lease.lease_ends > before[token]}
        assert kept == {"held", "called off"}


def test_a_turn_that_its_holder_is_giving_back_is_not_reported_as_lost_and_one_that_went_on_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = keeper_of(monkeypatch, lambda claims: {claim.token: ("fenced", "") for claim in claims})
    with keeper.hold_lease(claimed()) as held, structlog.testing.capture_logs() as logged:
        held.giving_back = True
        keeper._renew_leases([held], time.monotonic())
        assert (logged, held.reason) == ([], "")
        held.continue_with(claimed())
        keeper._renew_leases([held], time.monotonic())
        assert ([line["event"] for line in logged], held.reason) == (["lease.fenced"], "fenced")


def test_leases_are_kept_no_more_when_the_main_loop_is_stuck_and_again_when_it_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def renew(claims: list[LeaseClaim]) -> dict[str, tuple[str, str]]:
        asked.append(len(claims))
        return {claim.token: ("held", "") for claim in claims}

    keeper = keeper_of(monkeypatch, renew)
    with keeper.hold_lease(claimed()) as held:
        assert keeper._is_loop_alive(), "nothing was ever heard of a main loop: there is none to wait for"
        keeper.note_loop_turn()
        assert keeper._is_loop_alive()
        monkeypatch.setattr(lease, "LOOP_SECONDS", -1.0)  # it has not turned for longer than that
        keeper.start()
        wait_for(lambda: held.reason == "fenced")
        assert not asked, "no lease was renewed while the loop was stuck"
        monkeypatch.setattr(lease, "LOOP_SECONDS", 3600.0)
        wait_for(lambda: asked)
    keeper.close()


def test_a_turn_that_was_claimed_just_before_all_were_told_to_stop_stops_too() -> None:
    keeper = LeaseKeeper(SETTINGS, "w")
    with keeper.hold_lease(claimed()) as held:
        keeper.stop_all("shutdown")
    with keeper.hold_lease(claimed()) as late:
        assert (held.reason, late.reason) == ("shutdown", "shutdown")


async def test_a_run_whose_log_cannot_be_written_does_not_count() -> None:
    class Broken:
        async def append_events(self, *_: Any) -> None:
            raise RuntimeError("a fault of ours")

    writer = EventWriter(Broken(), claimed())
    writer.queue_event(AgentEvent(kind="output", text="x"))
    for _ in range(2):
        await asyncio.sleep(0)  # it was sent; what was not would go with the commit
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await writer.close()


# Short work with files runs in threads: the loop waits for none of it, and hears of whatever becomes of it.

TURN = contextvars.ContextVar("TURN", default="")


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(1)
    yield made
    made.close()


async def test_its_result_and_its_error_come_back(threads: Threads) -> None:
    assert await threads.do_file_work(int, "12", base=3) == 5
    with pytest.raises(ZeroDivisionError):
        await threads.do_file_work(lambda: 1 / 0)
    assert await threads.do_file_work(lambda: threading.current_thread().name) == "files_1", "the thread lives on"


async def test_log_lines_of_it_name_its_turn(threads: Threads) -> None:
    TURN.set("turn-a")
    assert await threads.do_file_work(TURN.get) == "turn-a"


async def test_four_are_at_work_at_once_and_a_fifth_waits(threads: Threads) -> None:
    begun, go = list[str](), threading.Event()

    def work(name: str) -> str:
        begun.append(name)
        go.wait(60)
        return threading.current_thread().name

    waiting = [asyncio.create_task(threads.do_file_work(work, str(number))) for number in range(5)]
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

    waiting = asyncio.create_task(threads.do_file_work(work))
    await wait_until(begun.is_set)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await threads.do_file_work(int) == 0, "another thread is at work meanwhile"
    go.set()
    assert len({await threads.do_file_work(threading.current_thread) for _ in range(20)}) <= 2
    assert trouble == []


async def test_when_it_is_closed_its_threads_end(threads: Threads) -> None:
    thread = await threads.do_file_work(threading.current_thread)
    threads.close()
    await wait_until(lambda: not thread.is_alive())

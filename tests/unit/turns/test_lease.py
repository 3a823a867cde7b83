"""A lease by its holder's own clock: how long a turn is surely ours, and what is read when it is no longer."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.completion import KILLED_BY, OTHERS, Completion, Verdict
from api_client.contract.tasks import FAIL, RUN, ChainTask
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.grace_period import ClockComparison
from api_client.turns.record.transition import Transition
from worker.runners.base import RunResult
from worker.turns.leases import machine_health
from worker.turns.leases.lease import Lease
from worker.turns.leases.machine_health import Host, find_oom_counter, read_oom_kills
from worker.turns.leases.replica_watch import MAY, MAY_NOT, choose_priority
from worker.turns.leases.worker_heartbeat import Liveness
from worker.turns.loops.rounds import SLOW_SHARE, Rounds
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.backoff import MOST_HAND_OVERS, Delays, hand_over_delay

SECONDS = 8.0


class Clock:
    """``time.monotonic()``, as the test wants it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """A ledger that confirms every claim, and counts how often it was asked."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked = 0

    async def confirm_lease(self, _claim: LeaseClaim) -> float:
        self.asked += 1
        return self.clock.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("worker.turns.leases.lease.time", SimpleNamespace(monotonic=made, time=time.time))
    return made


def lease(clock: Clock, *, deadline: float = 3600.0) -> Lease:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="turn-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    return Lease(LeaseClaim(turn, ChainTask(RUN, 1), "token", clock.now, deadline), SECONDS, clock.now + deadline)


def test_a_holder_stops_a_quarter_of_the_lease_before_others_may_take_the_turn(clock: Clock) -> None:
    held = lease(clock)
    assert held.lease_ends == clock.now + 0.75 * SECONDS
    clock.now += 0.75 * SECONDS
    assert held.reason == ""
    clock.now += 0.01
    assert (held.lapsed, held.reason) == (True, "fenced")


def test_a_beat_counts_from_when_it_was_sent_and_brings_no_stopped_run_back(clock: Clock) -> None:
    held = lease(clock)
    held.record_renewal(clock.now + 1)
    assert held.lease_ends == clock.now + 1 + 0.75 * SECONDS
    clock.now += SECONDS
    assert held.reason == "fenced"
    held.record_renewal(clock.now)
    assert (held.lapsed, held.reason) == (False, "fenced"), "its agent is being stopped"


def test_a_lost_lease_overrules_any_other_reason_and_nothing_overrules_it(clock: Clock) -> None:
    held = lease(clock)
    for reason, known in (("cancelled", "cancelled"), ("shutdown", "cancelled"), ("fenced", "fenced")):
        held.request_stop(reason)
        assert held.reason == known
    held.request_stop("cancelled")
    assert held.reason == "fenced"


def test_the_deadline_stops_a_run_and_the_next_link_has_what_is_left_of_it(clock: Clock) -> None:
    held = lease(clock, deadline=3.0)
    held.continue_with(LeaseClaim(held.claim.turn, ChainTask(RUN, 2), "token", clock.now + 1, 1.5))
    assert (held.continued, held.deadline, held.lease_ends) == (True, clock.now + 2.5, clock.now + 1 + 0.75 * SECONDS)
    clock.now += 2.6
    assert held.reason == "expired"


def test_a_lease_that_only_the_clock_ended_is_in_doubt_until_the_store_has_said(clock: Clock) -> None:
    held = lease(clock)
    assert not held.in_doubt
    clock.now += 0.76 * SECONDS
    assert held.in_doubt
    held.record_renewal(clock.now)
    assert (held.in_doubt, held.reason) == (False, ""), "the turn was nobody's meanwhile"
    clock.now += SECONDS
    held.request_stop("fenced")
    assert (held.in_doubt, held.reason) == (False, "fenced")


async def test_after_a_freeze_the_store_is_asked_before_anything_is_touched_and_not_otherwise(clock: Clock) -> None:
    held, store = lease(clock), Store(clock)
    ledger: Any = store
    await held.confirm_holder(ledger)
    assert store.asked == 0
    clock.now += SECONDS
    await held.confirm_holder(ledger)
    assert (store.asked, held.lapsed) == (1, False)


# When the store's clock jumped, a reaper takes nothing for one lease.


def looks(clocks: ClockComparison, *times: tuple[float, float]) -> list[bool]:
    return [clocks.compare_clocks(monotonic, server) for monotonic, server in times]


def test_a_reaper_that_has_just_begun_or_was_away_trusts_the_clock() -> None:
    clocks = ClockComparison(lease_seconds=3)
    assert looks(clocks, (0, 100), (1, 101), (90, 190)) == [True, True, True]


def test_a_reaper_that_sees_the_clock_jump_forward_waits_one_lease() -> None:
    clocks = ClockComparison(lease_seconds=2)
    assert looks(clocks, (0, 100), (1, 3701), (2, 3702), (3, 3703)) == [True, False, False, True]
    assert not clocks.jumped_back


def test_a_clock_that_was_set_back_is_told_once() -> None:
    clocks = ClockComparison(lease_seconds=2)
    assert looks(clocks, (0, 10_000), (1, 6_401)) == [True, False]
    assert clocks.jumped_back
    looks(clocks, (2, 6_402))
    assert not clocks.jumped_back


def test_what_the_clock_did_while_there_was_no_turn_concerns_nobody() -> None:
    clocks = ClockComparison(lease_seconds=2)
    assert looks(clocks, (0, 10_000)) == [True]
    clocks.forget_last()
    assert looks(clocks, (1, 6_401)) == [True]
    assert not clocks.jumped_back


# A run that its worker could not keep is delivered again: later each time, so many times, and then the turn ends.

LINK = ChainTask(RUN, 1)


def after(stop: str, handed_over: int = 0, verdict: Verdict = Verdict.CANCELLED, **evidence: str) -> Transition:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(
        turn_id="turn-1",
        epoch="e",
        state=TurnState.RUNNING,
        request=request,
        delivery=1,
        handed_over=handed_over,
        worker="worker-7-1@b",
        avoid="@a$",
    )
    result = RunResult(completion=Completion(verdict=verdict, reason="stopped", evidence=dict(evidence)))
    delays = Delays(first=1.0)
    return after_run(turn, LINK, result, prompt="x", stop=stop, transient_retries=4, delays=delays)


def test_the_waits_grow_and_are_bounded() -> None:
    assert [hand_over_delay(number) for number in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(
    ("stop", "evidence", "during"),
    [("fenced", {}, "fenced"), ("", {"stopped": "guard died"}, "guard died"), ("", {}, "stopped")],
)
def test_a_run_that_was_not_kept_is_delivered_again_later_and_uses_up_no_attempt(
    stop: str, evidence: dict[str, str], during: str
) -> None:
    moves = [after(stop, number, **evidence) for number in range(MOST_HAND_OVERS)]
    assert {(transition.next, transition.state, transition.run_ended) for transition in moves} == {
        (LINK, TurnState.QUEUED, False)
    }
    assert [transition.delay_ms for transition in moves] == [
        int(1000 * hand_over_delay(number + 1)) for number in range(8)
    ]
    assert [transition.fields.values["handed_over"] for transition in moves] == [number + 1 for number in range(8)]
    assert moves[0].events[0].during == during  # type: ignore[union-attr]


def test_after_the_last_one_the_turn_ends_as_an_error_that_says_so() -> None:
    transition = after("fenced", MOST_HAND_OVERS)
    assert (transition.next, transition.delay_ms) == (ChainTask(FAIL, 1), 0)
    failing = transition.fields.values["failing"]
    assert (failing.outcome, failing.code) == ("error", "not_kept")
    assert "9 times in a row" in failing.reason


STRIKES = 5


def test_a_run_that_others_killed_is_delivered_again_on_another_machine_and_uses_up_no_attempt() -> None:
    moves = [after("", number, Verdict.INCOMPLETE, killed_by="others") for number in range(STRIKES - 1)]
    assert {(transition.next, transition.state, transition.run_ended) for transition in moves} == {
        (LINK, TurnState.QUEUED, False)
    }
    assert [transition.delay_ms for transition in moves] == [1000, 2000, 4000, 8000]
    assert {transition.fields.values["avoid"] for transition in moves} == {"@a$ @b$"}
    assert moves[0].events[0].during == "killed"  # type: ignore[union-attr]


def test_a_turn_whose_agents_are_killed_again_and_again_ends_as_an_error_that_says_so() -> None:
    transition = after("", STRIKES - 1, Verdict.INCOMPLETE, killed_by="others")
    failing = transition.fields.values["failing"]
    assert (transition.next, failing.outcome, failing.code) == (ChainTask(FAIL, 1), "error", "not_kept")
    assert "5 times in a row" in failing.reason
    assert (transition.fields.values["avoid"], transition.fields.values["handed_over"]) == ("", 0)


def test_a_run_that_ended_by_a_signal_of_its_own_uses_up_an_attempt() -> None:
    assert after("", 0, Verdict.INCOMPLETE).run_ended


def test_a_worker_that_ends_hands_over_at_once_and_is_not_counted() -> None:
    transition = after("shutdown", MOST_HAND_OVERS)
    assert (transition.next, transition.delay_ms, "handed_over" in transition.fields.values) == (LINK, 0, False)


def test_a_run_that_ended_begins_the_count_again() -> None:
    assert after("", 5, Verdict.COMPLETE).fields.values["handed_over"] == 0


@pytest.mark.parametrize(
    ("delivery", "strikes", "charged", "left"),
    [(2, 1, 1000, 0), (3, 2, 2000, 0), (3, 2, 2500, 500), (2, 0, 700, 700), (4, 3, 3000, 1000)],
)
def test_what_was_charged_for_lost_runs_is_given_back_when_their_run_is_adopted(
    delivery: int, strikes: int, charged: int, left: int
) -> None:
    """One attempt in three may use 1,000 tokens. A delivery before the adopted one really was lost."""
    request = TurnRequest(
        model="m",
        messages=({"role": "user", "content": "x"},),
        session_id="s",
        token_limit=3000,
        cost_limit_usd=0.003,
    )
    turn = Turn(
        turn_id="turn-1",
        epoch="e",
        state=TurnState.RUNNING,
        request=request,
        delivery=delivery,
        strikes=strikes,
        tokens_used=charged,
        cost_used=charged,
    )
    complete, adopted = Completion(verdict=Verdict.COMPLETE, reason="done"), 2 if delivery == 4 else 1
    used = {"input_tokens": 30, "output_tokens": 12, "cost_usd": 0.000042}
    result = RunResult(completion=complete, text="x", usage=used, adopted=adopted)
    transition = after_run(turn, LINK, result, prompt="x", transient_retries=4, delays=Delays(first=1.0))
    assert (transition.fields.values["tokens_used"], transition.fields.values["cost_used"]) == (left + 42, left + 42)
    assert transition.facts.values["last_delivery"] == adopted


# A machine on which agents are killed: the kernel's count, or kills in a row, make it sick for a while.

KILLED = Completion(verdict=Verdict.INCOMPLETE, reason="", evidence={KILLED_BY: OTHERS})
WELL = Completion(verdict=Verdict.COMPLETE, reason="")


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom 3\noom_kill 2\n")
    return file


def host_of(tmp_path: Path, counter: Path) -> Host:
    return Host(tmp_path, lambda _: "", counter)


def heard(machine: Host, *completions: Completion) -> str:
    """Why the machine is sick once these runs have ended, as a worker looks."""
    for completion in completions:
        if machine.note_run_end(completion):
            machine.probe_now()
    return machine.sick


def test_what_the_kernel_kills_in_our_cgroup_makes_the_machine_sick_for_a_while_with_or_without_an_agent(
    tmp_path: Path, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = host_of(tmp_path, counter)
    assert machine.probe_if_due() == "", "what was killed before is over"
    counter.write_text("oom_kill 3\n")
    assert "for want of memory" in machine.probe_if_due()
    assert "for want of memory" in machine.probe_if_due(), "it stays sick"
    monkeypatch.setattr(machine_health, "_STARVED_SECONDS", 0.0)
    assert machine.probe_if_due() == "", "and is well again when nothing more was killed"


def test_the_count_of_the_whole_machine_tells_only_where_an_agent_of_ours_was_killed(
    tmp_path: Path, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_health, "_VMSTAT", counter)
    machine = host_of(tmp_path, counter)
    counter.write_text("oom_kill 3\n")
    assert machine.probe_if_due() == machine.probe_now() == ""
    assert heard(machine, KILLED) == "", "nothing was killed for want of memory since"
    counter.write_text("oom_kill 4\n")
    assert machine.probe_if_due() == "", (
        "a heartbeat between the kill and the end of its agent takes nothing for granted"
    )
    assert "for want of memory" in heard(machine, KILLED)


def test_agents_killed_in_a_row_make_a_machine_sick_that_counts_nothing(tmp_path: Path) -> None:
    machine = host_of(tmp_path, tmp_path / "no such file")
    assert heard(machine, KILLED, KILLED, WELL, KILLED, KILLED) == ""
    assert heard(machine, KILLED) == "3 agents in a row were killed, and not by their worker"


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/system.slice/turns.service\n", "system.slice/turns.service/memory.events", "oom 1\noom_kill 7\n"),
        ("0::/\n", "memory.events", "oom 1\noom_kill 7\n"),
        ("9:cpu:/x\n4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control", "under_oom 0\noom_kill 7\n"),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", "under_oom 0\noom_kill 7\n"),
    ],
)
def test_the_kernels_count_is_that_of_our_own_cgroup(cgroup: str, file: str, text: str, tmp_path: Path) -> None:
    counter = tmp_path / "mounted" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    (tmp_path / "cgroup").write_text(cgroup)
    found = find_oom_counter(tmp_path, tmp_path / "mounted")
    assert (found.resolve(), read_oom_kills(found)) == (counter.resolve(), 7)


@pytest.mark.parametrize("text", ["", "oom_kill many\n", "word\n", "max 3\n"])
def test_without_a_count_of_our_cgroup_that_can_be_read_it_is_that_of_the_machine(text: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/x\n")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/memory.events").write_text(text)
    assert find_oom_counter(tmp_path, tmp_path) == Path("/proc/vmstat")


# How long rounds of beats take: the worst is shown for a minute, and one alarm says when they begin to be slow.


def test_a_slow_round_is_alarmed_long_before_a_lease_fences_itself() -> None:
    rounds = Rounds(6.0 * SLOW_SHARE)
    assert not rounds.record_round(10.0, 0.9)
    assert rounds.record_round(12.0, 1.1)
    assert SLOW_SHARE < 0.75 - 0.25, "between alarm and fence more than a round lies"


def test_slow_rounds_are_alarmed_once_and_again_after_a_quick_one() -> None:
    rounds = Rounds(6.0 * SLOW_SHARE)
    assert [rounds.record_round(at, seconds) for at, seconds in ((1, 2.0), (2, 3.0), (3, 0.1), (4, 2.0))] == [
        True,
        False,
        False,
        True,
    ]


def test_the_worst_round_is_shown_for_a_minute() -> None:
    rounds = Rounds(6.0 * SLOW_SHARE)
    assert rounds.find_worst(0.0) == 0.0
    rounds.record_round(10.0, 2.5)
    rounds.record_round(60.0, 0.2)
    assert (rounds.find_worst(69.0), rounds.find_worst(71.0), rounds.find_worst(200.0)) == (2.5, 0.2, 0.0)


# When a worker is stalled: messages wait, a slot is free, and it takes none of them.


def stalled(liveness: Liveness, *seen: tuple[float, int, int, int | None]) -> list[bool]:
    return [liveness.record_look(now, taken=taken, free=free, waiting=waiting) for now, taken, free, waiting in seen]


def test_it_is_stalled_when_messages_waited_for_the_whole_time_and_it_took_none() -> None:
    assert stalled(Liveness(10), (0, 5, 1, 2), (5, 5, 1, 2), (9.9, 5, 1, 3), (15, 5, 1, 2)) == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("name", "middle"),
    [
        ("it took one", (8, 6, 1, 2)),
        ("no slot was free", (8, 5, 0, 2)),
        ("nothing waited", (8, 5, 1, 0)),
        ("the broker was away", (8, 5, 1, None)),
    ],
)
def test_anything_that_explains_the_silence_starts_the_time_anew(
    name: str, middle: tuple[float, int, int, int | None]
) -> None:
    taken = middle[1]
    seen = [(0.0, 5, 1, 2), (1.0, 5, 1, 2), middle, (12.0, taken, 1, 2), (17.0, taken, 1, 2), (22.0, taken, 1, 2)]
    assert stalled(Liveness(10), *seen) == [False, False, False, False, False, True]


def test_without_a_limit_nothing_is_stalled() -> None:
    assert stalled(Liveness(0), (0, 1, 1, 9), (1, 1, 1, 9), (10_000, 1, 1, 9)) == [False, False, False]


# Which replica Sentinel may promote.

ADDRESS = ("127.0.0.1", 7001)


def seen(replica: dict[str, Any], state: str = "online", offset: int = 100) -> int:
    master = {"slave0": {"ip": "127.0.0.1", "port": 7001, "state": state}, "slave_read_only": 1}
    return choose_priority({"slave_repl_offset": 100, **replica}, ADDRESS, master, offset)


def test_a_replica_that_has_all_that_the_master_had_may_be_promoted() -> None:
    assert seen({"master_link_status": "up", "slave_priority": 0}) == MAY


@pytest.mark.parametrize(
    ("replica", "state"),
    [
        ({"master_link_status": "down", "slave_priority": 100}, "online"),
        ({"master_link_status": "up", "slave_priority": 100}, "wait_bgsave"),
        ({"slave_priority": 100}, "online"),
    ],
)
def test_a_replica_that_is_out_of_step_may_not(replica: dict[str, Any], state: str) -> None:
    assert seen(replica, state) == MAY_NOT


def test_a_replica_that_its_master_does_not_know_may_not() -> None:
    assert choose_priority({"master_link_status": "up", "slave_repl_offset": 5}, ADDRESS, {}, 1) == MAY_NOT


@pytest.mark.parametrize("offset", [0, 101])
def test_a_replica_that_has_not_caught_up_yet_stays_as_it_is(offset: int) -> None:
    for priority in (MAY, MAY_NOT):
        assert seen({"master_link_status": "up", "slave_priority": priority}, offset=offset) == priority

"""Agents kept between messages: who takes them, how many stay, and whose line is whose."""

import asyncio
import json
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.completion import Completion, Verdict
from api_client.contract.settings.load import load_settings
from tests.runs import Asked, order_in
from tests.support import wait_until
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.runners.claude.cli_sessions import BaseSession
from worker.runners.claude.completion_gate import RunEvidence, judge_run
from worker.runners.claude.exchange import Exchange
from worker.runners.claude.hooks import END, START, STOP, STOP_FAILURE, HookMark
from worker.runners.warm import agent_lifecycle, idle_agents
from worker.runners.warm.agent_lifecycle import WarmLimits
from worker.runners.warm.idle_agents import IdleAgents
from worker.runners.warm.spare_demand import SpareDemand
from worker.runners.warm.usable_memory import usable_memory

LIMITS = WarmLimits(seconds=60, processes=3, per_owner=2, memory_mb=0)


def order(session: str = "s", owner: str = "o", number: int = 1) -> Order:
    values = {"session_id": session, "attempt": number, "delivery": number, "owner": owner}
    return order_in(Path("/w"), session, directory=Path("/w/d"), **values)


@dataclass
class Process:
    """A process that answers with its name, or as it is told."""

    session: tuple[str, str]
    launch_key: str = "f"
    answers: list[Any] = field(default_factory=list)
    can_be_kept: bool = True
    fits: bool = True
    size: int = 0
    closed: bool = False
    until: float = 0.0

    def continues(self, _: Order) -> bool:
        return self.fits

    async def answer_message(self, _: Order, _emit: Emit, _stop: Stop) -> RunResult | None:
        answer = self.answers.pop(0) if self.answers else "ok"
        if isinstance(answer, Exception):
            raise answer
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason=""), text=answer) if answer else None

    def mark_idle(self, until: float) -> None:
        self.until = until

    def measure_memory(self) -> int:
        return self.size

    def close(self) -> None:
        self.closed = True


@dataclass
class Runner:
    fixed: str = "f"
    opened: list[Process] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    keepable: bool = True

    async def run_alone(self, _: Order, _emit: Emit, _stop: Stop) -> RunResult:
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason=""), text="alone")

    def compute_launch_key(self, _: Order) -> str:
        return self.fixed

    def open_agent(self, order: Order, fixed: str, _: Stop) -> Process:
        made = Process((order.owner, order.session_id), fixed, list(self.answers), self.keepable)
        self.opened.append(made)
        return made


def ask(idle: IdleAgents, runner: Runner, *orders: Order, limits: WarmLimits = LIMITS) -> list[str]:
    async def run() -> list[str]:
        return [(await idle.run_message(runner, limits, each, lambda _: None, Asked())).text for each in orders]

    return asyncio.run(run())


def test_a_session_has_one_process_for_its_messages() -> None:
    idle, runner = IdleAgents(), Runner()
    ask(idle, runner, order(), order(), order("other"))
    assert [process.session for process in runner.opened] == [("o", "s"), ("o", "other")]
    assert runner.opened[0].until > time.monotonic()
    idle.close()
    assert all(process.closed for process in runner.opened)


def test_an_order_without_a_launch_key_runs_alone() -> None:
    idle = IdleAgents()
    assert ask(idle, Runner(fixed=""), order()) == ["alone"]
    assert len(idle) == 0


@pytest.mark.parametrize("change", ["fixed", "conversation", "owner", "doubt"])
def test_a_process_that_may_not_be_used_is_closed_before_another_starts(change: str) -> None:
    idle, runner = IdleAgents(), Runner(keepable=change != "doubt")
    ask(idle, runner, order())
    runner.fixed = "other" if change == "fixed" else "f"
    runner.opened[0].fits = change != "conversation"
    ask(idle, runner, order(owner="p" if change == "owner" else "o"))
    assert len(runner.opened) == 2
    assert runner.opened[0].closed is (change != "owner")


def test_a_message_that_was_never_taken_goes_to_a_new_process() -> None:
    idle, runner = IdleAgents(), Runner(answers=["one", None])
    assert ask(idle, runner, order(), order()) == ["one", "one"]
    assert [process.closed for process in runner.opened] == [True, False]


def test_a_process_whose_message_raised_is_closed() -> None:
    idle, runner = IdleAgents(), Runner(answers=[OSError("broken")])
    with pytest.raises(OSError, match="broken"):
        ask(idle, runner, order())
    assert runner.opened[0].closed
    assert len(idle) == 0


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        (WarmLimits(seconds=60, processes=2, per_owner=9, memory_mb=0), ["c", "d"]),
        (WarmLimits(seconds=60, processes=3, per_owner=2, memory_mb=0), ["a", "c", "d"]),
        (WarmLimits(seconds=60, processes=9, per_owner=9, memory_mb=330), ["c", "d"]),
    ],
)
def test_the_least_recently_used_end_first(limits: WarmLimits, left: list[str]) -> None:
    idle, made = IdleAgents(), {}
    for name, owner in (("a", "p"), ("b", "o"), ("c", "o"), ("d", "o")):
        made[name] = Process((owner, name), size=100 * 2**20)
        idle.keep_agent(made[name], limits)
    idle.remove_ended(made["a"] if "a" not in left else Process(("x", "x")))
    wait = idle._closing.submit(lambda: None)
    wait.result()
    assert [name for name, process in made.items() if not process.closed] == left
    idle.close()
    assert all(process.closed for process in made.values())


def test_chats_of_an_owner_that_are_held_at_once_keep_their_processes_until_they_pause() -> None:
    idle, runner, chats = IdleAgents(), Runner(), [order(name) for name in "abcd"]
    limits = replace(LIMITS, processes=4)
    ask(idle, runner, *chats, *chats, limits=limits)
    assert len(runner.opened) == 4
    idle.end_surplus("o", limits, 60.0)
    assert len(idle) == 4, "they were just used"
    idle.end_surplus("o", limits, 0.0)
    assert list(idle.idle_sessions()) == [("o", "c"), ("o", "d")]
    idle.close()


async def test_an_owners_surplus_ends_by_itself_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_agents, "_REST_SECONDS", 0.05)
    idle, runner = IdleAgents(), Runner()
    for name in "abc":
        await idle.run_message(runner, LIMITS, order(name), lambda _: None, Asked())
    await wait_until(lambda: list(idle.idle_sessions()) == [("o", "b"), ("o", "c")])
    idle.close()


def test_who_rests_is_known_and_whose_agent_has_ended_is_told_once() -> None:
    idle, runner, began = IdleAgents(), Runner(), time.monotonic()
    ask(idle, runner, order("a"), order("b"), order("c"))
    idle.end_surplus("o", LIMITS, 0.0)
    assert list(idle.idle_sessions()) == [("o", "b"), ("o", "c")], "two of an owner"
    assert all(began <= since <= time.monotonic() for since in idle.idle_sessions().values())
    assert (idle.pop_ended_sessions(), idle.pop_ended_sessions()) == ({("o", "a")}, set())
    idle.end_agent(("o", "b"))
    idle.end_agent(("o", "gone"))
    runner.opened[2].fits = False
    ask(idle, runner, order("c"))
    assert (list(idle.idle_sessions()), idle.pop_ended_sessions()) == ([("o", "c")], {("o", "b")}), "it has another"
    idle.close()
    assert (idle.idle_sessions(), idle.pop_ended_sessions()) == ({}, {("o", "c")})


def test_as_many_spares_are_wanted_as_new_sessions_came_lately_and_no_more_than_set() -> None:
    demand, limits = SpareDemand(), WarmLimits(seconds=60, spares=2)
    assert demand.count_wanted("a", limits, 0.0) == 0
    for at in (0.0, 1.0, 50.0):
        demand.record_session("a", at)
    assert [demand.count_wanted("a", limits, now) for now in (2.0, 55.0, 60.5, 70.0, 111.0)] == [2, 2, 2, 1, 0]
    assert demand.count_wanted("b", limits, 2.0) == 0


def test_after_two_failures_in_a_row_no_spare_is_tried_for_a_while() -> None:
    demand, limits = SpareDemand(), WarmLimits(seconds=60, spares=1)
    demand.record_session("a", 0.0)
    demand.record_failure("a", 1.0)
    assert demand.count_wanted("a", limits, 1.0) == 1
    demand.record_claim("a")
    demand.record_failure("a", 2.0)
    assert demand.count_wanted("a", limits, 2.0) == 1
    demand.record_failure("a", 3.0)
    demand.record_session("a", 50.0)
    assert [demand.count_wanted("a", limits, now) for now in (4.0, 62.0, 64.0)] == [0, 0, 1]


@dataclass
class Ahead(Process):
    """A spare."""

    claims: bool = True

    def bind_session(self, order: Order, fixed: str) -> bool:
        self.session, self.launch_key = (order.owner, order.session_id), fixed
        return self.claims


@dataclass
class Preparing(Runner):
    ahead: list[Ahead] = field(default_factory=list)
    claims: bool = True
    elsewhere: list[float] = field(default_factory=list)

    def list_wanted_spares(self, since: float) -> list[tuple[float, Order]]:
        return [(at, order("", "")) for at in self.elsewhere if at > since]

    def compute_spare_key(self, _: Order) -> str:
        return "kind"

    def open_spare(self, _: Order, part: str, until: float) -> Ahead | None:
        assert until > time.monotonic()
        self.ahead.append(Ahead(("", f"spare-{len(self.ahead)}"), part, claims=self.claims))
        return self.ahead[-1]


AHEAD = replace(LIMITS, spares=1)


def test_a_spare_becomes_a_new_sessions_process_and_is_nobodys_before() -> None:
    idle, runner = IdleAgents(), Preparing()
    ask(idle, runner, order("a"), limits=AHEAD)
    idle.start_spares(runner, AHEAD, order("a"), "kind")
    idle.start_spares(runner, AHEAD, order("a"), "kind")
    assert (len(runner.ahead), list(idle.idle_sessions()), idle.pop_ended_sessions()) == (1, [("o", "a")], set())
    assert list(idle.describe_idle()) == ["a", "(spare 1)"]
    ask(idle, runner, order("b"), order("b"), order("c"), limits=AHEAD)
    assert [process.session[1] for process in runner.opened] == ["a", "c"]
    assert runner.ahead[0].session == ("o", "b")
    idle.close()
    assert runner.ahead[0].closed


def test_a_spare_that_refuses_is_closed_and_the_session_starts_cold() -> None:
    idle, runner = IdleAgents(), Preparing(claims=False)
    for name in ("a", "b", "c"):
        ask(idle, runner, order(name), limits=AHEAD)
        idle.start_spares(runner, AHEAD, order(name), "kind")
    assert len(runner.opened) == 3
    assert [spare.closed for spare in runner.ahead] == [True, True], "the third is not tried"


def test_a_spare_is_there_for_what_came_to_another_worker_lately() -> None:
    idle, runner = IdleAgents(), Preparing(elsewhere=[time.time() - 61])

    def foreseen(limits: WarmLimits = AHEAD) -> int:
        idle.foresee_spares(runner, limits)
        idle._closing.submit(lambda: None).result()
        return len(runner.ahead)

    assert foreseen() == 0, "that was long ago"
    runner.elsewhere.append(time.time() - 30)
    assert foreseen(replace(AHEAD, spares=0)) == 0
    assert (foreseen(), foreseen()) == (1, 1)
    ask(idle, runner, order("a"), limits=AHEAD)
    assert (len(runner.opened), foreseen()) == (0, 1), "the same session is not foreseen twice"
    runner.elsewhere.append(time.time())
    assert foreseen() == 2
    idle.close()


def test_a_spare_that_is_about_to_start_is_ended_too() -> None:
    idle, ending = IdleAgents(), threading.Event()
    end_all = idle.end_all
    idle.end_all = lambda: (end_all(), ending.set())  # type: ignore[assignment,func-returns-value]

    class Slow(Preparing):
        def open_spare(self, order: Order, part: str, until: float) -> Ahead | None:
            ending.wait(0.3)
            return super().open_spare(order, part, until)

    runner = Slow(elsewhere=[time.time()])
    idle.foresee_spares(runner, AHEAD)
    idle.close()
    assert [spare.closed for spare in runner.ahead] == [True]


@pytest.mark.parametrize("limits", [replace(AHEAD, processes=2), replace(AHEAD, memory_mb=320)])
def test_agents_in_use_make_no_room_for_a_spare_but_a_spare_for_them(limits: WarmLimits) -> None:
    idle, runner = IdleAgents(), Preparing()
    idle._demand.record_session("kind", time.monotonic())
    idle.keep_agent(Process(("a", "a"), size=100 * 2**20), limits)
    idle.start_spares(runner, limits, order("c"), "kind")
    idle.keep_agent(Process(("b", "b"), size=100 * 2**20), limits)
    assert list(idle.idle_sessions()) == [("a", "a"), ("b", "b")]
    idle.start_spares(runner, limits, order("c"), "kind")
    assert len(runner.ahead) == 1
    idle.close()
    assert runner.ahead[0].closed


def look_again(idle: IdleAgents, runner: Preparing, limits: WarmLimits) -> None:
    idle.foresee_spares(runner, limits)
    for _ in range(2):  # what was postponed is a piece of work of its own
        idle._closing.submit(lambda: None).result()


@pytest.mark.parametrize("limits", [replace(AHEAD, processes=3), replace(AHEAD, memory_mb=430)])
def test_the_agent_that_has_rested_longest_makes_room_for_a_spare_and_stays_away(
    limits: WarmLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, runner = IdleAgents(), Preparing()
    idle._demand.record_session("kind", time.monotonic())
    made = [Process((name, name), size=100 * 2**20) for name in "abc"]
    for process in made:
        idle.keep_agent(process, limits)
    idle.start_spares(runner, limits, order("d"), "kind")
    assert not runner.ahead, "all are in use"
    monkeypatch.setattr(idle_agents, "_REST_SECONDS", 0.0)
    look_again(idle, runner, limits)
    assert ([process.closed for process in made], len(runner.ahead)) == ([True, False, False], 1), "it was tried again"
    idle.keep_agent(Process(("d", "d"), size=100 * 2**20), limits)
    assert list(idle.idle_sessions()) == [("c", "c"), ("d", "d")]
    assert list(idle.describe_idle()) == ["c", "(spare 1)", "d"]
    assert idle.pop_ended_sessions() == {("a", "a"), ("b", "b")}
    monkeypatch.setattr(idle_agents, "_REST_SECONDS", 60.0)
    idle.keep_agent(Process(("e", "e"), size=100 * 2**20), limits)
    assert list(idle.describe_idle()) == ["c", "d", "e"]
    monkeypatch.setattr(idle_agents, "_REST_SECONDS", 0.0)
    look_again(idle, runner, limits)
    assert list(idle.describe_idle()) == ["d", "e", "(spare 1)"], "one that had to go is started again"
    idle.close()


def test_the_agent_that_was_used_last_makes_no_room_for_a_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_agents, "_REST_SECONDS", 0.0)
    idle, runner, limits = IdleAgents(), Preparing(), replace(AHEAD, processes=1)
    idle._demand.record_session("kind", time.monotonic())
    idle.keep_agent(Process(("a", "a")), limits)
    idle.start_spares(runner, limits, order("b"), "kind")
    assert (list(idle.idle_sessions()), runner.ahead) == ([("a", "a")], [])
    idle.close()


def test_a_spare_whose_program_has_changed_since_is_not_started_again() -> None:
    idle, runner, limits = IdleAgents(), Preparing(), replace(AHEAD, processes=1)
    idle._demand.record_session("old", time.monotonic())
    idle.keep_agent(Process(("a", "a")), limits)
    idle.start_spares(runner, limits, order("b"), "old")
    idle.end_agent(("a", "a"))
    for _ in range(2):
        look_again(idle, runner, limits)
    assert not runner.ahead
    idle.close()


def test_idle_agents_may_hold_a_quarter_of_the_memory_by_processes_and_at_least_a_gibibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    own, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    for kinds, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        own.write_text(f"9:cpu:/other\n0:{kinds}:/system.slice/turns.service\n")
        inner = mounted / kinds / "system.slice" / "turns.service"
        inner.mkdir(parents=True, exist_ok=True)
        for folder in (inner, inner.parent, mounted / kinds):
            for text, found in (("max", installed), ("?", installed), (str(2**62), installed), ("1048576", 2**20)):
                (folder / name).write_text(text)
                assert usable_memory.__wrapped__(own, mounted) == found, (folder, text)
            (folder / name).unlink()
    assert usable_memory.__wrapped__(tmp_path / "none", mounted) == installed
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for gibibytes, mebibytes in ((2, 1024), (24, 3072)):
        monkeypatch.setattr(agent_lifecycle, "usable_memory", lambda size=gibibytes: size * 2**30)
        assert WarmLimits.from_settings(load_settings({})).memory_mb == mebibytes


def lifecycle(message: Exchange, state: str, uuid: str = "") -> bytes:
    return json.dumps(
        {"type": "command_lifecycle", "command_uuid": uuid or message.uuid, "state": state}, separators=(",", ":")
    ).encode()


def text(words: str) -> bytes:
    said = {"id": "m", "model": "x", "content": [{"type": "text", "text": words}]}
    return json.dumps({"type": "assistant", "message": said}, separators=(",", ":")).encode()


def repeated(message: Exchange) -> bytes:
    said = {"type": "user", "message": {"role": "user", "content": "?"}, "uuid": message.uuid, "isReplay": True}
    return json.dumps(said, separators=(",", ":")).encode()


def message() -> tuple[Exchange, list[str]]:
    seen: list[str] = []
    made = Exchange(order(), BaseSession(), b"?", time.monotonic())
    made.settle = lambda: seen.append("settled")
    return made, seen


def test_a_message_takes_its_own_lines_from_its_start_to_its_end() -> None:
    made, seen = message()
    result = b'{"type":"result","subtype":"success","is_error":false,"result":"mine"}'
    replay = repeated(made)
    lines = [lifecycle(made, "queued"), lifecycle(made, "started"), replay, text("mine"), result]
    for line in [*lines, lifecycle(made, "completed", "another"), lifecycle(made, "completed")]:
        made.take_line(line)
    assert (made.stream.text, made.late, made.over, seen) == ("mine", False, True, ["settled"])


@pytest.mark.parametrize("begun", [("queued",), ("queued", "started")])
@pytest.mark.parametrize("late", ["text", "delta", "result"])
def test_a_line_before_the_cli_repeats_it_is_another_messages_and_counts_nowhere(
    begun: tuple[str, ...], late: str
) -> None:
    made, seen = message()
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "theirs"}}
    line = {
        "text": text("theirs"),
        "delta": json.dumps({"type": "stream_event", "event": delta}).encode(),
        "result": b'{"type":"result","subtype":"success","is_error":false,"result":"theirs"}',
    }[late]
    for each in (*(lifecycle(made, state) for state in begun), line, repeated(made), text("mine")):
        assert not made.take_line(each)
    assert (made.late, made.stream.text, seen[:1]) == (True, "", ["settled"])


def test_words_of_an_answer_are_no_report_of_the_cli() -> None:
    made, seen = message()
    made.take_line(lifecycle(made, "started"))
    made.take_line(repeated(made))
    made.take_line(text(lifecycle(made, "completed").decode()))
    assert (made.over, seen) == (False, [])


OWN = HookMark(run="r", session="a")
RESULT = {"subtype": "success", "is_error": False, "terminal_reason": "completed", "stop_reason": "end_turn"}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, Verdict.COMPLETE),
        ({"lives": False}, Verdict.INCOMPLETE),
        ({"result": {}}, Verdict.INCOMPLETE),
        ({"result": RESULT | {"is_error": True}}, Verdict.INCOMPLETE),
        ({"result": RESULT | {"terminal_reason": "aborted_streaming"}}, Verdict.INCOMPLETE),
        ({"result": RESULT | {"stop_reason": "pause_turn"}}, Verdict.INCOMPLETE),
        ({"result": RESULT | {"is_error": True, "api_error_status": 500}}, Verdict.ERROR),
        ({"marks": {START: OWN}}, Verdict.INCOMPLETE),
        ({"marks": {STOP: OWN}}, Verdict.ERROR),
        ({"marks": {START: OWN, STOP: HookMark(run="x", session="a")}}, Verdict.INCOMPLETE),
        ({"marks": {START: OWN, STOP: OWN, STOP_FAILURE: OWN}}, Verdict.INCOMPLETE),
        ({"marks": {START: OWN, STOP: HookMark(run="r", session="a", background=1)}}, Verdict.INCOMPLETE),
        ({"text": " "}, Verdict.INCOMPLETE),
        ({"missing": "a part"}, Verdict.INCOMPLETE),
        ({"exit_code": -9}, Verdict.INCOMPLETE),
    ],
)
def test_a_message_of_a_living_process_is_complete_only_by_its_own_evidence(
    change: dict[str, Any], verdict: Verdict
) -> None:
    given: dict[str, Any] = {"exit_code": None, "lives": True, "result": RESULT, "text": "x"}
    given["marks"] = {START: OWN, STOP: OWN}
    assert judge_run(RunEvidence(run="r", session="a", **(given | change))).verdict is verdict
    assert END not in given["marks"]

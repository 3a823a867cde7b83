"""A CLI that is kept for its session's next message: every ending gets the verdict it deserves there too."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.claude.endings import ENDINGS, SLOW, Ending, mistakes
from tests.claude.running import Agent, at_first_output, inside
from tests.claude.stub import calls, fails, says, told
from tests.runs import Asked, Ran
from tests.support import processes_with, wait_for
from worker.runners.sandbox import bubblewrap, proxy_client
from worker.runners.sandbox.process_tags import inner_process_id
from worker.runners.warm import idle_agents

_OK = says("Guten ", "Tag.")


@pytest.fixture(params=["no sandbox", "sandbox"])
def warm(agent: Agent, request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent.settings["claude_warm_seconds"] = 60.0
    if request.param == "sandbox":
        if problem := bubblewrap.find_network_obstacle():
            pytest.skip(problem)
        agent.settings["sandbox"], agent.program = "required", inside(agent.root, agent.program)
    yield agent
    idle_agents.shared_idle_agents().close()


def ask(agent: Agent, prompt: str, before: Ran | None = None, **more: Any) -> Ran:
    """The next message of a conversation, or the retry that follows a complete run."""
    session = before.result.agent_session if before else ""
    return agent.run(prompt, owner="o", agent_session=session, **more)


def pids(agent: Agent, ran: Ran) -> set[int]:
    """The CLI of a run, if it lives; in a sandbox it is the second process."""
    found = processes_with(f"HELIX_AGENT_MARK={ran.evidence['run']}")
    return {pid for pid in found if ran.evidence["sandbox"] == "none" or inner_process_id(pid) == 2} if found else set()


#: Without those that need a disk of their own, which has nothing of the message before. How much of an answer was read
#: before the cut matters to its text alone: all cuts are in ``python -m tests.claude``, which CI runs too.
_HERE = [
    each
    for each in ENDINGS
    if not each.small_disk and each.name not in {f"stdout cut after {most} of 20 pieces" for most in (2, 5, 8, 16, 19)}
]
#: A program around the CLI ends with its message: no other one comes before it in the same process.
PLACES = [(each, place) for each in _HERE for place in ("first", "second") if place == "first" or not each.wrapper]


@pytest.mark.parametrize(
    ("ending", "place"), PLACES, ids=[f"{ending.name.replace(' ', '-')}-{place}" for ending, place in PLACES]
)
def test_an_ending_is_seen_for_what_it_is(ending: Ending, place: str, warm: Agent) -> None:
    if ending.obstacle:
        pytest.skip(ending.obstacle)
    if "invalid settings" in ending.name and warm.settings.get("sandbox") == "required":
        pytest.skip("its wrapper writes into the settings file, which a sandbox protects")
    warm.settings |= ending.settings or {}
    plain = not ending.wrapper and "default" not in warm.settings.get("claude_tools", ())
    following = _Following(warm)
    if place == "second":
        warm.stub.replies = [says("Zuvor.")]
        following.before = ask(warm, "vorher")
    ran = ending.run(following)  # type: ignore[arg-type]
    assert mistakes(ending, ran) == [], ran.evidence
    lives = ending.truth == "complete" and plain
    assert len(idle_agents.shared_idle_agents()) == lives, "only a complete message leaves its process"
    if place == "second" and plain:
        assert ran.evidence["start"] == "warm"


class _Following:
    """An agent whose run follows another one in the same conversation, if there was one."""

    def __init__(self, agent: Agent, before: Ran | None = None) -> None:
        self.agent, self.before = agent, before
        self.stub, self.root, self.settings = agent.stub, agent.root, agent.settings

    def wrapped(self, script: str) -> _Following:
        return _Following(self.agent.wrapped(script), self.before)

    def run(self, **limits: Any) -> Ran:
        return ask(self.agent, "Hallo", self.before, **limits)


def test_the_next_message_is_taken_by_the_same_process_and_each_has_its_own_files_cost_and_text(warm: Agent) -> None:
    warm.stub.replies = [calls("Write", file_path="output/a.md", content="A"), says("eins")]
    first = ask(warm, "erstens")
    alive = pids(warm, first)
    warm.stub.replies = [calls("Write", file_path="output/b.md", content="B"), says("zwei")]
    second = ask(warm, "zweitens", first)
    assert pids(warm, second) == alive
    assert len(alive) == 1
    assert [each.evidence["start"] for each in (first, second)] == ["cold", "warm"]
    assert [each.result.text for each in (first, second)] == ["eins", "zwei"]
    assert [sorted(p.name for p in (each.order.directory / "output").iterdir()) for each in (first, second)] == [
        ["a.md"],
        ["b.md"],
    ]
    costs = [each.result.usage["cost_usd"] for each in (first, second)]
    assert costs[0] == pytest.approx(costs[1])
    assert costs[0] > 0
    assert second.result.usage["input_tokens"] == 22
    asked = [text.partition("\n\n")[2] for text in told(warm.stub.requests[-1]) if text.startswith("user: N")]
    assert asked[0].startswith("erstens")


def test_a_conversation_goes_on_cold_where_its_process_is_gone_and_the_model_sees_the_same(warm: Agent) -> None:
    def seen(kill: bool) -> list[str]:
        warm.stub.replies, warm.session = [_OK], f"s{kill}"
        first = ask(warm, "erstens")
        second = ask(warm, "zweitens", first)
        if kill:
            idle_agents.shared_idle_agents().close()
        third = ask(warm, "drittens", second)
        assert third.evidence["start"] == ("cold" if kill else "warm")
        idle_agents.shared_idle_agents().close()
        return [text for text in told(warm.stub.requests[-1]) if "# Environment" not in text and text != "user: "]

    assert seen(True) == seen(False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_ended_between_two_messages_is_replaced(warm: Agent, number: signal.Signals) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    for pid in pids(warm, first):
        os.kill(pid, number)
    wait_for(lambda: not pids(warm, first))
    second = ask(warm, "zweitens", first)
    assert (second.verdict, second.evidence["start"]) == ("complete", "cold")


def test_a_process_whose_door_died_is_replaced(warm: Agent) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    os.kill(proxy_client._current[0].pid, signal.SIGKILL)
    second = ask(warm, "zweitens", first)
    assert (second.verdict, second.evidence["start"]) == ("complete", "cold")
    assert not pids(warm, first)


def test_a_process_that_was_killed_as_it_was_asked_is_replaced_and_no_attempt_is_lost(
    warm: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runners.claude.warm_agent.is_stopped", lambda _: False)
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    (pid,) = pids(warm, first)
    os.kill(pid, signal.SIGSTOP)  # it looks alive, and takes nothing
    calls_before = len(warm.stub.requests)

    def kill() -> None:
        wait_for(lambda: not len(idle_agents.shared_idle_agents()))
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    second = ask(warm, "zweitens", first)
    thread.join()
    assert (second.verdict, second.evidence["start"]) == ("complete", "cold")
    assert len(warm.stub.requests) == calls_before + 1


@pytest.mark.parametrize("moment", ["between", "as it is asked"])
def test_a_frozen_process_is_replaced(warm: Agent, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    (pid,) = pids(warm, first)
    os.kill(pid, signal.SIGSTOP)
    if moment == "as it is asked":
        monkeypatch.setattr("worker.runners.claude.warm_agent.is_stopped", lambda _: False)
    second = ask(warm, "zweitens", first)
    assert (second.verdict, second.evidence["start"]) == ("complete", "cold")
    assert not pids(warm, first)


def test_a_cancelled_message_leaves_no_process_and_no_trace(warm: Agent) -> None:
    warm.stub.replies = [_OK]
    first, stop = ask(warm, "erstens"), Asked()
    warm.stub.replies = [SLOW]

    def cancel(event: Any, _: Any) -> None:
        stop.reason = "cancelled" if event.kind == "output" else stop.reason

    second = ask(warm, "zweitens", first, stop=stop, when=cancel)
    assert second.verdict == "cancelled"
    assert not pids(warm, first)
    assert not len(idle_agents.shared_idle_agents())
    warm.stub.replies = [_OK]
    third = ask(warm, "drittens", first)
    assert (third.verdict, third.evidence["start"]) == ("complete", "cold")
    assert not any("zweitens" in text for text in told(warm.stub.requests[-1]))


def test_an_api_error_is_no_end_of_the_conversation(warm: Agent) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    warm.stub.replies = [fails(500)]
    assert ask(warm, "zweitens", first).verdict == "transient"
    warm.stub.replies = [_OK]
    third = ask(warm, "zweitens", first)
    assert (third.verdict, third.evidence["start"]) == ("complete", "cold")
    assert sum("zweitens" in text for text in told(warm.stub.requests[-1])) == 1


def test_a_message_that_goes_on_from_elsewhere_gets_a_process_of_its_own(warm: Agent) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    second = ask(warm, "zweitens", first)
    third = ask(warm, "anders", first)  # the second was rejected: the turn goes on from the first
    assert [each.evidence["start"] for each in (first, second, third)] == ["cold", "warm", "cold"]
    assert not pids(warm, second)


@pytest.mark.parametrize(
    "changed", [{"claude_api_key": "sk-other"}, {"claude_permission_mode": "plan"}, {"limit_memory_mb": 2000}]
)
def test_what_a_process_is_started_with_never_changes_in_it(warm: Agent, changed: dict[str, Any]) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    warm.settings |= changed
    assert ask(warm, "zweitens", first).evidence["start"] == "cold"
    (warm.workdir / "CLAUDE.md").write_text("Sprich Platt.")
    third = ask(warm, "drittens", first)
    assert third.evidence["start"] == "cold"
    assert not pids(warm, first)


def test_another_owner_gets_another_process_and_a_foreign_model_too(warm: Agent) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    other = warm.run("zweitens", owner="p", agent_session=first.result.agent_session)
    assert other.evidence["start"] == "cold"
    model = ask(warm, "drittens", first, option="haiku")
    assert model.evidence["start"] == "cold"


def test_an_idle_process_is_ended_by_the_guard(warm: Agent) -> None:
    warm.stub.replies, warm.settings["claude_warm_seconds"] = [_OK], 1.0
    first = ask(warm, "erstens")
    began = time.monotonic()
    wait_for(lambda: not pids(warm, first) and not len(idle_agents.shared_idle_agents()))
    assert time.monotonic() - began < 30
    wait_for(lambda: not any((warm.workdir / "agent" / "warm").iterdir()))


def test_late_words_of_a_message_are_not_those_of_the_next(warm: Agent) -> None:
    """Something is written into the pipe between two messages: the process is not trusted any more."""
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    (pid,) = pids(warm, first)
    line = b'{"type":"assistant","message":{"id":"x","model":"m","content":[{"type":"text","text":"zu spaet"}]}}\n'
    with Path(f"/proc/{pid}/fd/1").open("wb", buffering=0) as out:
        out.write(line)
    second = ask(warm, "zweitens", first)
    assert (second.verdict, second.result.text, second.evidence["start"]) == ("complete", "Guten Tag.", "cold")


def test_killed_in_the_second_message_is_incomplete(warm: Agent) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")
    warm.stub.replies = [SLOW]
    second = ask(warm, "zweitens", first, when=_kill(first))
    assert second.verdict == "incomplete"
    assert second.evidence["start"] == "warm"


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_message_that_leaves_a_process_ends_both_and_is_judged_by_their_end(warm: Agent, place: str) -> None:
    if "sandbox" in warm.settings:
        pytest.skip("nothing of this test's can be put into a sandbox")
    warm.stub.replies, before = [_OK], None
    if place == "second":
        before = ask(warm, "vorher")
    left: list[subprocess.Popen[bytes]] = []

    def leave(event: Any, order: Any) -> None:
        if event.kind == "output" and not left:
            mark = before.evidence["run"] if before else order.process_tag
            left.append(subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath, "HELIX_AGENT_MARK": mark}))

    ran = ask(warm, "Hallo", before, when=leave)
    assert (ran.verdict, ran.evidence["exit_code"], ran.evidence["swept"]) == ("complete", 0, 1)
    assert left[0].wait(10) == -signal.SIGKILL
    assert not len(idle_agents.shared_idle_agents())


def test_a_process_that_is_killed_as_soon_as_it_has_answered_has_answered(
    warm: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.stub.replies = [_OK]
    first = ask(warm, "erstens")

    def kill(point: str) -> None:
        for pid in pids(warm, first) if point == "agent.ended" else ():
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]

    monkeypatch.setattr("worker.runners.claude.warm_agent.pass_failpoint", kill)
    second = ask(warm, "zweitens", first)
    assert (second.verdict, second.result.text, second.evidence["start"]) == ("complete", "Guten Tag.", "warm")
    monkeypatch.undo()
    third = ask(warm, "drittens", second)
    assert (third.verdict, third.evidence["start"]) == ("complete", "cold")
    assert sum("zweitens" in text for text in told(warm.stub.requests[-1])) == 1


def _kill(first: Ran) -> Any:
    hear = at_first_output(signal.SIGKILL)
    return lambda event, _: hear(event, first.order)

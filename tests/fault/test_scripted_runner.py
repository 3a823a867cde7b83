"""The scripted runner with its real agent process: how the process ends, what is left, and what was logged."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api_client.contract.completion import ErrorKind
from tests.runs import Asked, Played, order_in
from tests.support import alive, processes_with, wait_for
from worker.runners.base import AgentEvent
from worker.runners.event_reader import MAX_ANSWER
from worker.runners.sandbox import supervision
from worker.runners.sandbox.guard_client import SOURCE_ROOT, AgentProcesses
from worker.runners.scripted.runner import ScriptedRunner

#: Marks are found on the whole machine: each run of these tests has its own.
RUN = f"runner-{secrets.token_hex(4)}"


Play = Callable[..., Played]


@pytest.fixture(params=["thread", "loop"])
def play(agents: AgentProcesses, tmp_path: Path, request: pytest.FixtureRequest) -> Play:
    """Return a function that runs the scripted agent with given steps, watched by a thread or by an event loop.

    ``when`` maps the text of an event to an action to carry out when the event arrives.
    """

    def run(*steps: object, stop: Asked | None = None, when: dict[str, Callable[[], Any]] | None = None, **values: Any):  # type: ignore[no-untyped-def]
        (tmp_path / "script.yaml").write_text(yaml.safe_dump([{"attempts": [list(steps)]}]))
        directory = tmp_path / "delivery"
        directory.mkdir(exist_ok=True)
        action_log = tmp_path / "action_log"
        given = {
            "directory": directory,
            "option": str(tmp_path / "script.yaml"),
            "action_log": str(action_log),
            **values,
        }
        order = order_in(tmp_path, f"{RUN}-{tmp_path.name}", **given)
        events: list[AgentEvent] = []

        def emit(event: AgentEvent) -> None:
            events.append(event)
            if when and event.text in when:
                when[event.text]()

        started = time.monotonic()
        runner = ScriptedRunner(agents)
        if request.param == "loop":
            result = asyncio.run(runner.run_async(order, emit, stop or Asked()))
        else:
            result = runner.run(order, emit, stop or Asked())
        seconds = time.monotonic() - started
        assert processes_with(f"HELIX_AGENT_MARK={RUN}-{tmp_path.name}.") == {}, "a process of the run is left"
        lines = action_log.read_text().splitlines() if action_log.exists() else []
        return Played(result, events, seconds, [json.loads(line) for line in lines])

    return run


def test_a_whole_answer_is_complete(play: Play) -> None:
    run = play({"tool": "Read"}, {"say": "Guten "}, {"say": "Tag"}, {"usage": {"input_tokens": 3}})
    assert (run.verdict, run.result.text, run.result.usage) == ("complete", "Guten Tag", {"input_tokens": 3})
    assert [event.kind for event in run.events] == ["tool", "output", "output"]
    assert run.evidence["exit_code"] == 0
    assert run.evidence["result"] is True


def test_the_action_log_has_each_start_and_each_end(play: Play) -> None:
    run = play({"say": "x"})
    again = play({"say": "x"}, "die", delivery=2)
    assert [(line["event"], line["attempt"], line["delivery"]) for line in again.action_log] == [
        ("start", 1, 1),
        ("end", 1, 1),
        ("start", 1, 2),
    ]
    start, end = run.action_log
    assert start.keys() >= {"turn", "attempt", "delivery", "pid", "event", "at", "monotonic"}
    assert start["pid"] == end["pid"]
    assert start["monotonic"] <= end["monotonic"]
    assert abs(start["at"] - time.time()) < 60


def test_without_an_action_log_nothing_is_recorded(play: Play) -> None:
    assert play({"say": "x"}, action_log="").action_log == []


def test_an_agent_that_dies_is_incomplete_and_its_fragment_is_kept(play: Play) -> None:
    run = play({"say": "halb"}, "die")
    assert (run.verdict, run.result.text, run.reason) == ("incomplete", "halb", "the agent was killed by signal 6")
    assert run.evidence["signal"] == signal.SIGABRT


def test_an_output_cut_off_with_exit_code_zero_is_incomplete(play: Play) -> None:
    run = play({"say": "halb"}, "cut")
    assert (run.verdict, run.evidence["exit_code"], run.evidence["result"]) == ("incomplete", 0, False)


def test_an_exit_code_is_incomplete(play: Play) -> None:
    run = play({"say": "halb"}, {"exit": 7})
    assert (run.verdict, run.evidence["exit_code"]) == ("incomplete", 7)
    assert run.action_log[-1]["exit"] == 7


def test_an_error_is_told_with_its_kind(play: Play) -> None:
    completion = play({"error": {"kind": "transient", "retry_after": 1.5}}).result.completion
    assert (completion.kind, completion.retry_after) == (ErrorKind.TRANSIENT, 1.5)


def test_a_reset_takes_back_what_was_said(play: Play) -> None:
    assert play({"say": "falsch"}, {"reset": "r"}, {"say": "richtig"}).result.text == "richtig"


def test_files_are_written_in_the_delivery_directory(play: Play, tmp_path: Path) -> None:
    play({"write": {"path": "output/response.md", "content": "ä"}}, {"touch": str(tmp_path / "flag")}, {"say": "x"})
    assert (tmp_path / "delivery/output/response.md").read_text(encoding="utf-8") == "ä"
    assert (tmp_path / "flag").exists()


def test_a_step_that_fails_is_incomplete_and_its_error_is_in_the_evidence(play: Play) -> None:
    run = play({"touch": "no/such/folder"}, {"say": "x"})
    assert run.verdict == "incomplete"
    assert "FileNotFoundError" in run.evidence["stderr"]


def test_an_agent_can_wait_for_a_file(play: Play, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    assert (
        play({"say": "vorher"}, {"wait_for": str(flag)}, {"say": "!"}, when={"vorher": flag.touch}).verdict
        == "complete"
    )


def test_a_silent_agent_is_stopped_by_the_idle_watchdog(play: Play) -> None:
    run = play({"say": "x"}, "hang", idle_seconds=4.0)  # from its start on
    assert (run.verdict, run.reason, run.evidence["stopped"]) == (
        "incomplete",
        "the agent was silent for 4 s",
        "idle",
    )
    assert run.action_log[-1]["event"] == "end"


def test_an_agent_that_keeps_talking_is_not_idle(play: Play) -> None:
    run = play({"say": {"text": "a b c d e f g", "seconds": 3.5}}, idle_seconds=3.0)
    assert run.verdict == "complete"


def test_a_slow_listener_is_not_the_agents_silence(play: Play) -> None:
    pause = threading.Event()
    run = play({"say": "a"}, {"wait": 0.5}, {"say": "b"}, when={"a": lambda: pause.wait(3.2)}, idle_seconds=3.0)
    assert run.verdict == "complete"


def test_a_run_ends_at_its_deadline(play: Play) -> None:
    run = play({"say": {"text": "a " * 200, "seconds": 30}}, deadline=time.monotonic() + 0.5)
    assert (run.verdict, run.evidence["stopped"]) == ("incomplete", "deadline")


@pytest.mark.parametrize("reason", ["cancelled", "expired", "shutdown"])
def test_a_run_asked_to_stop_ends_long_before_its_grace_is_over(play: Play, reason: str) -> None:
    stop = Asked()
    run = play(
        {"say": "x"},
        "hang",
        stop=stop,
        when={"x": lambda: setattr(stop, "reason", reason)},
        kill_grace_seconds=600,
    )
    assert (run.verdict, run.reason) == ("cancelled", f"stopped: {reason}")
    assert run.action_log[-1] | {"exit": 143, "event": "end"} == run.action_log[-1]


def test_an_agent_that_ignores_sigterm_is_killed_after_the_grace(play: Play) -> None:
    stop = Asked()
    run = play(
        "ignore_sigterm",
        {"say": "x"},
        "hang",
        stop=stop,
        when={"x": lambda: setattr(stop, "reason", "cancelled")},
        kill_grace_seconds=0.3,
    )
    assert (run.verdict, run.evidence["signal"]) == ("cancelled", signal.SIGKILL)
    assert run.seconds >= 0.3
    assert [line["event"] for line in run.action_log] == ["start"]


def test_a_fenced_run_is_killed_at_once_even_during_its_grace(play: Play) -> None:
    stop = Asked()

    def ask() -> None:
        stop.reason = "cancelled"
        threading.Timer(0.3, setattr, (stop, "reason", "fenced")).start()

    run = play("ignore_sigterm", {"say": "x"}, "hang", stop=stop, when={"x": ask}, kill_grace_seconds=600)
    assert (run.verdict, run.reason) == ("cancelled", "stopped: fenced")


def test_what_an_agent_says_while_it_is_being_stopped_is_not_passed_on(play: Play) -> None:
    stop = Asked()
    talks = {"say": {"text": "b " * 400, "seconds": 20}}
    stopped = {"x": lambda: setattr(stop, "reason", "cancelled")}
    run = play("ignore_sigterm", {"say": "x"}, talks, stop=stop, when=stopped, kill_grace_seconds=0.6)
    assert len(run.events) <= 4


def test_an_agent_does_not_outlive_the_lease(play: Play) -> None:
    run = play({"say": "x"}, "hang", stop=Asked(lease_ends=time.monotonic() + 0.6))
    assert (run.verdict, run.evidence["stopped"]) == ("cancelled", "lease ended")


def test_a_lease_that_is_extended_carries_the_agent_on(play: Play) -> None:
    stop = Asked(lease_ends=time.monotonic() + 5)
    run = play(
        {"say": "x"}, {"wait": 5.2}, {"say": "y"}, stop=stop,
        when={"x": lambda: setattr(stop, "lease_ends", time.monotonic() + 60)},
    )  # fmt: skip
    assert run.verdict == "complete"


@pytest.mark.parametrize("scrub", [False, True])
def test_a_child_left_behind_is_gone_when_the_run_returns(play: Play, scrub: bool) -> None:
    run = play({"say": "x"}, {"fork": {"scrub": scrub}})
    child = int(next(event.detail for event in run.events if event.kind == "note"))
    assert (run.verdict, run.evidence["swept"]) == ("complete", 1)
    assert not alive(child)


def test_a_child_of_an_agent_that_died_is_gone_when_the_run_returns(play: Play) -> None:
    run = play({"fork": {}}, {"say": "x"}, "die")
    assert run.verdict == "incomplete"
    assert not alive(int(next(event.detail for event in run.events if event.kind == "note")))


def test_a_flood_of_text_is_a_limit_error(play: Play) -> None:
    run = play({"flood": 50 * 2**20})
    assert run.result.completion.kind is ErrorKind.LIMIT
    assert "an answer of more than" in run.reason
    assert len(run.result.text) <= MAX_ANSWER
    assert run.evidence["bytes"] < 2 * MAX_ANSWER


def test_a_line_without_an_end_is_a_limit_error(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MAX_LINE", 2**20)
    run = play({"flood": {"size": 50 * 2**20, "kind": "line"}})
    assert run.result.completion.kind is ErrorKind.LIMIT
    assert run.evidence["bytes"] < 2 * 2**20


def test_a_flood_of_nonsense_is_a_limit_error(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MAX_OUTPUT", 2**20)
    run = play({"flood": {"size": 50 * 2**20, "kind": "noise"}})
    assert run.result.completion.kind is ErrorKind.LIMIT
    assert 100 < run.evidence["skipped_lines"] < 200


def test_some_nonsense_is_skipped_and_counted(play: Play) -> None:
    run = play({"flood": {"size": 20_000, "kind": "noise"}}, {"say": "x"})
    assert (run.verdict, run.result.text, run.evidence["skipped_lines"]) == ("complete", "x", 3)


def test_half_a_line_at_the_end_is_skipped_and_counted(play: Play) -> None:
    run = play({"say": "x"}, {"flood": {"size": 5, "kind": "line"}}, "die")
    assert (run.result.text, run.evidence["skipped_lines"]) == ("x", 1)


def test_separators_inside_a_text_do_not_cut_it(play: Play) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\r\nf"
    assert play({"say": text}).result.text == text


def test_a_listener_that_raises_ends_the_agent_and_is_heard(agents: AgentProcesses, play: Play, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the store is gone")

    with pytest.raises(RuntimeError, match="the store is gone"):
        play({"say": "x"}, "hang", when={"x": fail})
    assert processes_with(f"HELIX_AGENT_MARK={RUN}-{tmp_path.name}.") == {}


def test_a_killed_guard_is_not_the_agents_fault_and_the_next_run_works(play: Play, agents: AgentProcesses) -> None:
    run = play({"say": "x"}, "hang", when={"x": lambda: os.kill(agents.start_guard(), signal.SIGKILL)})
    assert (run.verdict, run.evidence["stopped"]) == ("cancelled", "guard died")
    assert play({"say": "y"}).verdict == "complete"


def test_a_guard_that_does_nothing_is_ended_with_its_agents(
    play: Play, agents: AgentProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_GUARD_PATIENCE", 0.3)
    stop = Asked()

    def freeze() -> None:
        os.kill(agents.start_guard(), signal.SIGSTOP)
        stop.reason = "cancelled"

    run = play({"say": "x"}, "hang", stop=stop, when={"x": freeze}, kill_grace_seconds=0)
    assert run.reason == "stopped: cancelled"
    assert play({"say": "y"}).verdict == "complete"


def test_an_agent_finds_its_place_and_nothing_of_the_worker_in_its_environment(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_STORE_URL", "redis://:secret@localhost/0")
    seen = []

    def look() -> None:
        found = processes_with(f"HELIX_AGENT_MARK={RUN}-{tmp_path.name}.2.3")
        seen.extend(Path(f"/proc/{pid}/environ").read_text() for pid in found)
        (tmp_path / "go").touch()

    play({"say": "x"}, {"wait_for": str(tmp_path / "go")}, when={"x": look}, attempt=2, delivery=3)
    assert "HELIX_AGENT_ATTEMPT=2\0" in seen[0]
    assert "secret" not in seen[0]


def test_a_missing_script_is_a_configuration_error(play: Play) -> None:
    run = play({"say": "x"}, option="/no/such.yaml")
    assert run.result.completion.kind is ErrorKind.CONFIG
    assert "/no/such.yaml: No such file" in run.reason


def test_a_worker_short_of_descriptors_is_its_machine_s_fault(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("worker.runners.sandbox.guard_client.os.pipe", full)
    completion = play({"say": "x"}).result.completion
    assert completion.kind is ErrorKind.HOST
    assert "Too many open files" in completion.reason


def test_a_long_message_is_no_burden(play: Play) -> None:
    message = {"role": "user", "content": "x" * 300_000}
    assert play({"say": "x" * 300_000}, messages=(message,)).result.text == "x" * 300_000


POISON = """
import sys
from pathlib import Path
from tests.runs import Asked, order_in
from worker.runners.scripted.runner import ScriptedRunner
print("started", flush=True)
order = order_in(Path(sys.argv[1]), sys.argv[3], option=sys.argv[2])
ScriptedRunner().run(order, lambda event: None, Asked())
"""


def test_an_agent_can_kill_its_worker_and_dies_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- attempts: [[{say: x}, fork, kill_parent]]")
    argv = [sys.executable, "-c", POISON, str(tmp_path), str(script), f"{RUN}-poison"]
    worker = subprocess.run(argv, env={"PYTHONPATH": SOURCE_ROOT}, check=False, timeout=180)
    assert worker.returncode == -signal.SIGKILL
    wait_for(lambda: processes_with(f"HELIX_AGENT_MARK={RUN}-poison.1.1") == {})

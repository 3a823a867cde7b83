"""A rule that raises, hangs, dies or eats memory is an issue of its own in ``ResponseEnforcer`` and ``turns validate``.

tests/integration/test_validation_pool.py has the same for the engine.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api_client.contract.usage import Usage
from tests.support import alive, wait_for
from tests.unit.enforcement.samples import ADR, header_with
from tests.unit.enforcement.test_response_enforcer import Runner as TextRunner
from worker.cli.validate import validate
from worker.enforcement import (
    FileExistenceValidator,
    ResponseEnforcer,
    ResponseValidator,
    StepMarkerValidator,
    ValidationIssue,
    attempt_validation,
    run_validators,
)
from worker.enforcement.rules import LengthRule, RegexRule
from worker.enforcement.validator_process import MOST_CHARACTERS, isolate_validators, lift_memory_limit, limit_memory
from worker.enforcement.validators.services import measure_cost, record_cost

MEMORY_MB = 64
MARKER = "<!-- STEP: done -->"


def eat() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x" * 10**6))


def run_away() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def raise_one() -> None:
    raise ValueError("a fault of the rule")


def end_program() -> None:
    raise SystemExit(3)


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (raise_one, "ValueError: a fault of the rule"),
    "ends the program": (end_program, "SystemExit"),
    "hangs": (run_away, "took longer than"),
    "sleeps": (lambda: time.sleep(600), "took longer than"),
    "eats memory": (eat, "MemoryError"),
    "dies": (lambda: os.kill(os.getpid(), 9), "took its process down"),
}
cases = pytest.mark.parametrize("fault", FAULTS)


class Faulty(ResponseValidator):
    name = "faulty"

    def __init__(self, does: Callable[[], Any]) -> None:
        self._does = does

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        self._does()
        return []


class Runner:
    async def run_session(self, *, session_id: str, prompt: str, **_options: Any) -> Any:
        return SimpleNamespace(stdout="Ja.")

    continue_session = run_session


def seconds(fault: str) -> float:
    """A rule that hangs hangs for as long as it may; all others have time enough on any machine."""
    return 1.0 if fault in {"hangs", "sleeps"} else 120.0


@cases
async def test_in_response_enforcer_the_rule_is_blamed_and_the_others_are_heard(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.enforcement.validator_process.MEMORY_MB", MEMORY_MB)
    does, words = FAULTS[fault]
    enforcer = ResponseEnforcer(
        Runner(), 0, [Faulty(does), StepMarkerValidator()], validation_seconds=seconds(fault), locale="en"
    )
    beats, judging = 0, asyncio.ensure_future(enforcer.run_with_enforcement("s", "p"))
    while not judging.done():
        await asyncio.sleep(0.01)
        beats += 1
    result = await judging
    assert [(issue.validator, issue.code) for issue in result.issues] == [("faulty", "VALIDATOR_ERROR")]
    assert words in result.issues[0].message
    assert [issue.code for issue in result.fixed_issues] == ["MISSING_STEP_MARKER"]
    assert beats > 1, "the loop goes on while a rule is judged"


@cases
def test_in_turns_validate_the_rule_is_blamed_and_the_others_are_heard(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    does, words = FAULTS[fault]
    monkeypatch.setattr("worker.enforcement.validator_process.MEMORY_MB", MEMORY_MB)
    monkeypatch.setattr("worker.enforcement.validator_process.SECONDS", seconds(fault))
    monkeypatch.setattr("worker.cli.validate.offered_validators", lambda: ["faulty", "step_marker"])
    monkeypatch.setattr(
        "worker.cli.validate.build_validators", lambda *_args, **_more: (Faulty(does), StepMarkerValidator("en"))
    )
    (tmp_path / "answer.md").write_text("Ja.")
    found = CliRunner().invoke(
        validate,
        [str(tmp_path / "answer.md"), "--validator", "faulty", "--validator", "step_marker", "--locale", "en"],
        env={"COLUMNS": "200"},
    )
    assert found.exit_code == 1, found.output
    assert "MISSING_STEP_MARKER" in found.output
    assert "VALIDATOR_ERROR: Validator faulty" in found.output
    assert words in found.output


def test_a_rule_of_regular_expressions_that_runs_away_is_ended() -> None:
    rule = RegexRule(must=("(a+)+$",))
    assert not rule.bounded
    with isolate_validators([rule, LengthRule(min_chars=999)], seconds=1) as guarded:
        found = run_validators("a" * 64 + "b", guarded)
    assert [(issue.validator, issue.code) for issue in found] == [
        ("regex", "VALIDATOR_ERROR"),
        ("length", "ANSWER_TOO_SHORT"),
    ]


@pytest.mark.parametrize("rules", [[StepMarkerValidator()], [StepMarkerValidator(), RegexRule(must=("a",))]])
@pytest.mark.parametrize("step", ["normalise_answer", "list_candidates", "_find_losses", "_find_flaws"])
async def test_a_reply_that_takes_too_long_to_read_is_an_issue_and_the_turn_goes_on(
    rules: list[ResponseValidator], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = TextRunner("Ja, a.", "b\n" * MOST_CHARACTERS, MARKER)
    own = getattr(attempt_validation, step)
    monkeypatch.setattr(
        attempt_validation, step, lambda *given, **more: run_away() if len(agent.calls) == 2 else own(*given, **more)
    )
    enforcer = ResponseEnforcer(agent, validators=rules, validation_seconds=1.0, locale="en")
    result = await enforcer.run_with_enforcement("s", "?")
    assert ("content_guard", "VALIDATOR_ERROR") in [(i.validator, i.code) for i in result.history[1].issues]
    assert result.success
    assert result.response == f"Ja, a.\n\n{MARKER}"


def test_rules_of_a_known_bound_start_no_child(tmp_path: Path) -> None:
    validators = [StepMarkerValidator(), LengthRule(min_chars=1), FileExistenceValidator(tmp_path)]
    threads, before = threading.active_count(), children()
    with isolate_validators(validators) as guarded:
        run_validators("Ja.", guarded)
        assert children() == before
        run_validators("# ADR-1: files", guarded)
        assert len(children() - before) == 1, "a text that makes a rule look at files"
    assert children() <= before
    assert threading.active_count() <= threads


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_a_rule_that_overran_three_times_is_not_waited_for_again() -> None:
    calls = []

    def hang() -> None:
        calls.append(1)
        time.sleep(600)

    with isolate_validators([Faulty(hang)], seconds=0.2) as guarded:
        found = [run_validators(str(number), guarded)[0].message for number in range(4)]
    assert "3 times" in found[3] or "3 times" in run_validators("x", guarded)[0].message
    assert calls == [], "what a rule changes stays in its child"


def test_a_rule_that_forks_gives_no_other_rule_its_verdict() -> None:
    with isolate_validators([Faulty(os.fork), RegexRule(must=("b+",))]) as guarded:
        found = [run_validators("a", guarded) for _ in range(3)]
    assert [[issue.validator for issue in issues] for issues in found] == [["regex"]] * 3


def test_a_rule_that_overruns_leaves_none_of_its_programs_behind(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def hang() -> None:
        started = subprocess.Popen(["sleep", "600"])
        daemon = subprocess.check_output(["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"], text=True)
        seen.write_text(f"{started.pid} {daemon}")
        started.wait()

    with isolate_validators([Faulty(hang)], seconds=2) as guarded:
        assert [issue.code for issue in run_validators("a", guarded)] == ["VALIDATOR_ERROR"]
    programs = [int(pid) for pid in seen.read_text().split()]
    assert len(programs) == 2
    wait_for(lambda: not any(map(alive, programs)))


def test_programs_that_end_after_the_ones_that_started_them_leave_no_zombies(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def leave() -> None:
        with seen.open("a") as file:
            file.write(subprocess.check_output(["sh", "-c", "sleep 0.01 >/dev/null & echo $!"], text=True))

    with isolate_validators([Faulty(leave)], seconds=10) as guarded:

        def is_reaped(pid: str) -> bool:
            run_validators("a", guarded)  # the next answer
            return not Path(f"/proc/{pid}").exists()

        run_validators("a", guarded)
        first = seen.read_text().split()[0]
        wait_for(lambda: is_reaped(first))


def test_the_programs_of_a_rule_that_overruns_end_whoever_started_them(tmp_path: Path) -> None:
    """In a thread, in a session of their own, and while others are being started."""
    seen = tmp_path / "seen"
    start = f"sleep 600 & echo $! >>{seen}; wait"

    def hang() -> None:
        def keep_starting() -> None:
            while True:
                subprocess.Popen(["sh", "-c", start], start_new_session=True)
                time.sleep(0.001)

        threading.Thread(target=keep_starting, daemon=True).start()
        time.sleep(600)

    with isolate_validators([Faulty(hang)], seconds=1) as guarded:
        assert [issue.code for issue in run_validators("a", guarded)] == ["VALIDATOR_ERROR"]
    started = [int(line) for line in seen.read_text().split()]
    assert len(started) > 3
    wait_for(lambda: not any(map(alive, started)))
    assert len(seen.read_text().split()) == len(started)


@pytest.mark.parametrize(
    ("kill", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.killpg, signal.SIGKILL)]
)
def test_no_program_of_a_rule_outlives_turns_validate(
    kill: Callable[[int, int], None], number: int, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    with start_command(
        tmp_path,
        "import subprocess",
        "started = subprocess.Popen(['sleep', '600']); "
        f"open({str(seen)!r}, 'w').write(str(started.pid)); started.wait()",
    ) as process:
        wait_for(lambda: seen.exists() and seen.read_text())
        kill(process.pid, number)
    wait_for(lambda: not alive(int(seen.read_text())))


def start_command(folder: Path, top: str, body: str, more: str = "pass") -> subprocess.Popen[str]:
    """Start ``turns validate --json`` with a rule in a file; ``more`` stands in its class."""
    (folder / "answer.md").write_text("Ja.")
    (folder / "policy.yaml").write_text("rules:\n  - rule: own.py\n")
    (folder / "own.py").write_text(
        f"from worker.enforcement import ResponseValidator\n{top}\n\n"
        f"class Own(ResponseValidator):\n    name = 'own'\n    {more}\n"
        f"    def validate(self, response, context):\n        {body}\n        return []\n"
    )
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("turns")), "validate", "answer.md", "--policy", "policy.yaml", "--json"],
        cwd=folder,
        env={**os.environ, "HELIX_ROOT": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("more", ["pass", "bounded = True"], ids=["in a child", "in place"])
def test_all_that_a_rule_prints_goes_to_standard_error_and_the_json_stays_json(more: str, tmp_path: Path) -> None:
    with start_command(
        tmp_path,
        "import os; print('loaded'); os.system('echo loaded too')",
        "print('judged', end=''); os.system('echo judged too')",
        more,
    ) as process:
        said, told = process.communicate()
    assert json.loads(said) == [{"file": "answer.md", "valid": True, "issues": [], "edits": []}]
    for words in ("loaded", "loaded too", "judged", "judged too"):
        assert words in told.replace(f"{words} too\n", "")
    assert process.returncode == 0


def test_what_a_rule_prints_before_it_overruns_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with isolate_validators([Faulty(lambda: print("begun", end="") or time.sleep(600))], seconds=1) as guarded:
        assert [issue.code for issue in run_validators("a", guarded)] == ["VALIDATOR_ERROR"]
    assert capfd.readouterr() == ("", "begun")


def test_what_a_rule_or_its_program_prints_is_no_output_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    def prints() -> None:
        os.write(1, b"said\n")
        subprocess.run(["echo", "said too"], check=True)

    with isolate_validators([Faulty(prints)]) as guarded:
        assert run_validators("a", guarded) == []
    assert capfd.readouterr() == ("", "said\nsaid too\n")


def test_what_cannot_be_sent_to_a_child_reaches_it_all_the_same() -> None:
    class Reads(ResponseValidator):
        name = "reads"

        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("SEEN", context["look"](response), "")]

    with isolate_validators([Reads()]) as guarded:
        assert [run_validators(text, guarded, {"look": lambda it: it * 2})[0].message for text in ("a", "b")] == [
            "aa",
            "bb",
        ]


def test_what_cannot_come_back_from_a_child_is_an_issue_of_its_rule() -> None:
    class Returns(ResponseValidator):
        name = "returns"

        def validate(self, response: str, context: Mapping[str, Any]) -> Any:
            return [threading.Lock()]

    with isolate_validators([Returns()]) as guarded:
        assert [issue.code for issue in run_validators("x", guarded)] == ["VALIDATOR_ERROR"]


def test_what_a_rule_uses_of_models_in_its_child_is_counted() -> None:
    with measure_cost() as counted, isolate_validators([Faulty(lambda: record_cost(Usage(input_tokens=7)))]) as guarded:
        run_validators("x", guarded)
    assert counted.spent.input_tokens == 7


def test_an_outer_count_counts_what_an_inner_one_does() -> None:
    with measure_cost() as outer:
        record_cost(Usage(input_tokens=1))
        with measure_cost() as inner:
            record_cost(Usage(input_tokens=2))
        record_cost(Usage(input_tokens=4))
    record_cost(Usage(input_tokens=8))
    assert (inner.spent.input_tokens, outer.spent.input_tokens) == (2, 7)


@pytest.mark.parametrize("late", [0.0, 0.5], ids=["known", "just forked"])
def test_a_cancelled_judging_leaves_no_child(tmp_path: Path, late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fork = tmp_path / "pid", os.fork

    def fork_late() -> int:
        if pid := fork():
            time.sleep(late)
        return pid

    monkeypatch.setattr(os, "fork", fork_late)

    def hang() -> None:
        seen.write_text(str(os.getpid()))
        time.sleep(600)

    async def judge() -> None:
        enforcer = ResponseEnforcer(Runner(), 0, [Faulty(hang)], validation_seconds=600)
        judging = asyncio.ensure_future(enforcer.run_with_enforcement("s", "p"))
        while not (seen.exists() and seen.read_text()):
            await asyncio.sleep(0.01)
        judging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await judging

    asyncio.run(judge())
    wait_for(lambda: not alive(int(seen.read_text())))


def test_programs_of_rules_do_not_inherit_the_bound_on_memory() -> None:
    with limit_memory(MEMORY_MB):
        with pytest.raises(MemoryError):
            eat()
        with lift_memory_limit():
            assert len(bytearray(b"x" * (2 * MEMORY_MB * 2**20))) > 0
        with pytest.raises(MemoryError):
            eat()


# ``turns validate``: exit codes, lines for people, JSON for programs.


def run(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(validate, list(arguments), input=given, env={"HELIX_ROOT": ""})


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    path = tmp_path / "answer.md"
    path.write_text("Antwort.\n\n<!-- STEP: done -->\n")
    return path


def test_a_good_answer_is_ok_and_exits_with_0(answer: Path) -> None:
    result = run(str(answer))
    assert (result.exit_code, result.output) == (0, f"{answer}: ok\n")


def test_errors_exit_with_1_and_name_file_line_code_message_and_fix(answer: Path) -> None:
    answer.write_text("Antwort.\n\n<!-- STEP: foo -->\n")
    result = run(str(answer))
    assert result.exit_code == 1
    assert result.output == (
        f"{answer}:3: error INVALID_STEP: Invalid step: foo\n"
        "    fix: Valid steps: constraints, done, finalize, generate, what, why\n"
    )


def test_warnings_alone_exit_with_0(answer: Path) -> None:
    answer.write_text("<!-- STEP: done -->\nNoch etwas.\n")
    result = run(str(answer))
    assert (result.exit_code, "warning TEXT_AFTER_MARKER" in result.output) == (0, True)


def test_standard_input_is_read_for_a_dash() -> None:
    assert run("-", given="Text <!-- STEP: done -->").exit_code == 0
    assert run("-", given="Text").exit_code == 1


def test_json_has_every_file_with_its_issues(answer: Path) -> None:
    result = run(str(answer), "-", "--json", given="Text")
    first, second = json.loads(result.output)
    assert first == {"file": str(answer), "valid": True, "issues": [], "edits": []}
    assert (second["valid"], second["issues"][0]["code"]) == (False, "MISSING_STEP_MARKER")
    assert result.exit_code == 1


def test_only_the_named_validators_judge(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text(ADR)
    assert run(str(path)).exit_code == 1
    assert run(str(path), "--validator", "adr_structure").exit_code == 0


def test_a_file_named_adr_needs_no_step_marker_but_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "adr-040.md"
    path.write_text(ADR)
    assert run(str(path)).exit_code == 0
    path.write_text("Nur Text.")
    assert "MISSING_YAML_HEADER" in run(str(path)).output


def test_paths_are_relative_to_the_root(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    path = tmp_path / "adr-1.md"
    path.write_text(header_with("files:\n  modify: [a.py]\n"))
    assert run(str(path), "--root", str(tmp_path)).exit_code == 0
    (tmp_path / "other").mkdir()
    assert "FILE_NOT_FOUND" in run(str(path), "--root", str(tmp_path / "other")).output


def test_messages_come_in_english_too() -> None:
    assert "The response has no STEP marker" in run("-", "--locale", "en", given="x").output


@pytest.mark.parametrize("arguments", [[], ["nothing.md"], ["-", "--validator", "step_markr"], ["-", "--shout"]])
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    assert run(*arguments, given="x").exit_code == 2


def test_a_file_that_is_no_text_is_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(b"\xff\xfe\x00")
    result = run(str(path))
    assert result.exit_code == 2
    assert "not UTF-8" in result.output


def test_an_answer_cannot_drive_the_terminal() -> None:
    result = run("-", given="<!-- STEP: \x1b[2J -->")
    assert "\x1b" not in result.output

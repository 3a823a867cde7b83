"""Validators in child processes: one that hangs, dies or cannot be made costs a verdict, never a worker."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.installation import children_of
from tests.support import alive, wait_for
from worker.enforcement.attempt import Attempt
from worker.enforcement.policies import read_policy
from worker.enforcement.policy import Policy, Retry, decide_next
from worker.enforcement.validator_process import MOST_CHARACTERS
from worker.processes.program import reap_process
from worker.turns.validation_pool import ValidationCase, ValidationPool, ValidatorsUnavailable, validate_case

OWN = """
import os, time
from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.validator import ResponseValidator

class Own(ResponseValidator):
    @property
    def name(self):
        return "own"
    def validate(self, response, context):
        {body}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a user's own validator, as a package with an entry point would."""

    def install(body: str) -> None:
        (tmp_path / "own_validator.py").write_text(dedent(OWN).replace("{body}", body))
        info = tmp_path / "own-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[helix_turns.validators]\nown = own_validator:Own\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def case(text: str, *names: str, **more: Any) -> ValidationCase:
    return ValidationCase(
        text=text, history=(), names=names, root=Path.cwd(), context={"locale": "en"}, policy=Policy(**more)
    )


def codes(judges: ValidationPool, what: ValidationCase) -> list[tuple[str, str]]:
    return [(issue.validator, issue.code) for issue in judges.validate_answer(what).issues]


#: Too long for the worker itself.
LONG = (
    " ".join(hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(MOST_CHARACTERS // 64 + 1)) + "\n\n"
)


@pytest.mark.parametrize("before", ["", LONG])
def test_answers_are_judged_and_repaired_alike_here_and_in_a_child(before: str) -> None:
    judges = ValidationPool(10)
    assert codes(judges, case(f"{before}Ja.", "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]
    assert codes(judges, case(f"{before}Ja.\n\n<!-- STEP: done -->", "step_marker")) == []
    assert judges.repair(case(f"{before}Ja?", "step_marker")).step == "what"
    assert bool(idle(judges)) is bool(before)


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "__import__('re').match(r'(a+)+$', 'a' * 64 + 'b')", "os.kill(os.getpid(), 9)", "os._exit(0)"],
)
def test_a_validator_that_hangs_or_dies_is_blamed_and_the_others_are_heard(
    install: Callable[[str], None], body: str
) -> None:
    install(body)
    judges = ValidationPool(5.0)
    found = codes(judges, case("Ja.", "own", "step_marker"))
    assert sorted(found) == [("own", "VALIDATOR_ERROR"), ("step_marker", "MISSING_STEP_MARKER")]
    assert codes(judges, case("Ja.", "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]


def test_a_validator_that_overran_for_three_answers_is_no_longer_run_in_this_turn(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    install(f"open({str(seen)!r}, 'a').write('x'); time.sleep(0 if response == 'Good.' else 600); return []")
    judges, history = ValidationPool(2.0), list[Attempt]()
    for text in ("One.", "Two.", "Three.", "Four."):
        history.append(judges.validate_answer(replace(case(text, "own", "step_marker"), history=tuple(history))))
    repaired = judges.repair(replace(case("Four.", "own", "step_marker"), history=tuple(history)))
    assert seen.read_text() == "xxxx", "twice for the first answer, once for the second and for the third"
    for issues in (*(attempt.issues for attempt in history), repaired.issues):
        assert ("own", "VALIDATOR_ERROR") in [(issue.validator, issue.code) for issue in issues]
    assert repaired.step == "unknown"
    whole = [replace(each, issues=tuple(replace(issue, part="") for issue in each.issues)) for each in history]
    for earlier in (whole[:1], whole[:2]):
        assert codes(judges, replace(case("Good.", "own"), history=tuple(earlier))) == []
    assert codes(judges, replace(case("Good.", "own"), history=tuple(history), fresh=True)) == []


def test_a_validator_that_eats_memory_is_blamed_and_the_others_are_heard(install: Callable[[str], None]) -> None:
    install("[bytearray(b'x' * 10**6) for _ in iter(int, 1)]")
    judges = ValidationPool(60.0, memory_mb=64)
    found = judges.validate_answer(case("Ja.", "own", "step_marker")).issues
    assert [(issue.validator, issue.code) for issue in found] == [
        ("own", "VALIDATOR_ERROR"),
        ("step_marker", "MISSING_STEP_MARKER"),
    ]
    assert "MemoryError" in found[0].message


def test_a_validator_that_forks_costs_no_other_answer_its_verdict(install: Callable[[str], None]) -> None:
    install("os.fork(); return []")
    judges = ValidationPool(10.0)
    assert codes(judges, case("Ja.", "own")) == []
    assert codes(judges, case(LONG, "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]
    assert codes(judges, case("Ja.", "own", "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]


def test_a_validator_that_is_stopped_leaves_none_of_its_programs_behind(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    install(
        "started = __import__('subprocess').Popen(['sleep', '600']); "
        f"print(started.pid, file=open({str(seen)!r}, 'a'), flush=True); started.wait()"
    )
    assert codes(ValidationPool(2.0), case("Ja.", "own")) == [("own", "VALIDATOR_ERROR")]
    for pid in map(int, seen.read_text().split()):
        wait_for(lambda pid=pid: not alive(pid))


@pytest.mark.parametrize(
    "started",
    [
        "Popen(['sleep', '600']).pid",
        "Popen(['setsid', 'sleep', '600']).pid",
        "check_output(['sh', '-c', 'sleep 600 >/dev/null & echo $!'], text=True)",
    ],
    ids=["itself", "in a session of its own", "by a program that has ended"],
)
def test_what_a_validator_starts_ends_with_its_validation_also_when_the_answer_passes(
    started: str, install: Callable[[str], None], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    install(f"open({str(seen)!r}, 'w').write(str(__import__('subprocess').{started})); return []")
    judges = ValidationPool(60.0)
    assert codes(judges, case("Ja.", "own")) == []
    wait_for(lambda: not alive(int(seen.read_text())))
    children = idle(judges)
    assert codes(judges, case(LONG, "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]
    assert idle(judges) == children != [], "the child itself goes on"


@pytest.mark.parametrize("place", ["__init__", "module"])
def test_a_program_that_a_validator_starts_when_it_is_made_serves_several_answers(
    place: str, install: Callable[[str], None], tmp_path: Path
) -> None:
    install("ask(self.cat if hasattr(self, 'cat') else cat); return []")
    started = "subprocess.Popen(['cat'], stdin=-1, stdout=-1)"
    more = (
        f"cat = {started}\n" if place == "module" else f"Own.__init__ = lambda self: setattr(self, 'cat', {started})\n"
    )
    asks = (
        "def ask(cat):\n    cat.stdin.write(b'x\\n'); cat.stdin.flush()\n    assert cat.stdout.readline() == b'x\\n'\n"
    )
    with (tmp_path / "own_validator.py").open("a") as module:
        module.write(f"\nimport subprocess\n{asks}{more}")
    judges, file = ValidationPool(60.0), read_policy("rules: [own]\n")
    for _ in range(2):
        assert codes(judges, replace(case("Ja.", "own"), file=file)) == []


def test_the_process_that_runs_programs_for_rules_stays_for_the_next_answer(
    install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_SANDBOX", "off")
    install("__import__('subprocess').Popen(['sleep', '600']); return []")
    file = read_policy("rules:\n  - own\n  - {rule: command, options: {command: ['true']}}\n")
    judges, guards = ValidationPool(60.0), list[int]()

    def running() -> list[int]:
        [child] = idle(judges)
        return [pid for pid in children_of(child) if alive(pid)]

    for _ in range(2):
        assert codes(judges, replace(case("Ja.", "own", "command"), file=file)) == []
        wait_for(lambda: len(running()) == 1)
        guards += running()
    assert guards[0] == guards[1]


def test_the_programs_of_a_validator_end_with_the_group_of_its_worker(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    install(
        "started = __import__('subprocess').Popen(['sleep', '600']); "
        f"open({str(seen)!r}, 'w').write(str(started.pid)); started.wait()"
    )
    with start_judging(tmp_path, start_new_session=True) as process:
        wait_for(lambda: seen.exists() and seen.read_text())
        reap_process(process)
    wait_for(lambda: not alive(int(seen.read_text())))


def test_what_a_validator_prints_is_no_output_of_the_worker(
    install: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    install("print('said'); os.system('echo said too'); return []")
    assert codes(ValidationPool(60.0), case("Ja.", "own")) == []
    assert capfd.readouterr() == ("", "said\nsaid too\n")


def test_a_child_in_which_a_validator_left_much_memory_occupied_is_replaced(install: Callable[[str], None]) -> None:
    install("globals().setdefault('left', []).append(bytearray(24 * 2**20)); return []")
    judges = ValidationPool(30.0, memory_mb=256)
    children = []
    for _ in range(4):
        assert codes(judges, case("Ja.", "own")) == []
        children.append(idle(judges))
    assert children[0] == children[1] != []
    assert children[2] == []
    assert children[3] not in ([], children[0])


def test_a_validator_that_waits_for_a_program_has_the_time_it_asks_for(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    install("time.sleep(2.5); return []")
    module = tmp_path / "own_validator.py"
    module.write_text(
        module.read_text().replace("class Own(ResponseValidator):", f"class Own(ResponseValidator):{WAITS}")
    )
    assert codes(ValidationPool(1.0), case("Ja.", "own")) == []
    module.write_text(module.read_text().replace(WAITS, ""))
    assert codes(ValidationPool(1.0), case("Ja.", "own")) == [("own", "VALIDATOR_ERROR")]


WAITS = "\n    patience = 60.0"


def test_this_process_goes_on_while_a_validator_holds_its_own(install: Callable[[str], None]) -> None:
    install("__import__('re').match(r'(a+)+$', 'a' * 64 + 'b')")
    judges, beats, done = ValidationPool(1.5), 0, threading.Event()

    def work() -> None:
        judges.validate_answer(case("Ja.", "own"))
        done.set()

    threading.Thread(target=work, daemon=True).start()
    while not done.wait(0.05):
        beats += 1
    assert beats, "a lease thread would have missed its beats"


def test_an_unknown_validator_cannot_judge() -> None:
    with pytest.raises(ValidatorsUnavailable, match="step_markr"):
        ValidationPool(5).validate_answer(case("Ja.", "step_markr"))


def test_a_rule_file_that_changes_is_loaded_again_by_the_same_child(tmp_path: Path) -> None:
    rule = tmp_path / "rules" / "short.py"
    rule.parent.mkdir()
    file = read_policy("rules:\n  - rule: rules/short.py\n")
    judges = ValidationPool(60)

    def says(code: str, changed: int) -> list[tuple[str, str]]:
        found = f"[ValidationIssue('{code}', 'Too short', 'short')]"
        rule.write_text(
            dedent(OWN).replace("Own", "Short").replace('"own"', '"short"').replace("{body}", f"return {found}")
        )
        os.utime(rule, (changed, changed))
        return codes(judges, replace(case("Ja.", "short"), root=tmp_path, file=file))

    assert says("ONE", 1_000_000_000) == [("short", "ONE")]
    assert says("TWO", 1_000_000_001) == [("short", "TWO")]
    assert len(idle(judges)) == 1, "the same child judged both"


@pytest.mark.parametrize("fork", ["", "__import__('os').fork(); "], ids=["", "and forks"])
@pytest.mark.parametrize("used", [False, True], ids=["at once", "while it is used"])
def test_a_rule_file_that_breaks_cannot_judge_and_costs_no_other_answer_its_verdict(
    used: bool, fork: str, tmp_path: Path
) -> None:
    broken = f"{fork}raise ValueError('broken')"
    breaks = f"{dedent(OWN).replace('{body}', 'return []')}\nopen(__file__, 'w').write({broken!r})"
    (tmp_path / "own.py").write_text(breaks if used else broken)
    judges, file = ValidationPool(60), read_policy("rules:\n  - rule: own.py\n")
    with pytest.raises(ValidatorsUnavailable, match="broken"):
        judges.validate_answer(replace(case("Ja.", "own"), root=tmp_path, file=file))
    assert codes(judges, case(LONG, "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]
    assert len(idle(judges)) == 1


def idle(judges: ValidationPool) -> list[int]:
    """The processes of the children that wait for a case."""
    return [int(child._process.pid or 0) for child in judges._children._idle]


def test_our_own_rules_that_fail_in_the_worker_are_blamed_and_end_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(what: ValidationCase) -> None:
        if what.names:
            raise RecursionError("too deep")

    monkeypatch.setattr("worker.turns.validation_pool.validate_case", lambda what: fails(what) or validate_case(what))
    assert codes(ValidationPool(10), case("Ja.", "step_marker")) == [("step_marker", "VALIDATOR_ERROR")]


def test_a_reply_that_takes_too_long_to_read_is_an_issue_and_costs_no_more_than_two_time_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[object] = []
    monkeypatch.setattr("worker.enforcement.attempt_validation.list_candidates", lambda *_: read.append(1))
    first = validate_case(case("Ja.", "step_marker", "adr_structure"))
    what = case("- - - - a\n" * 200_000, "step_marker", "adr_structure")
    judges = ValidationPool(0.02)
    with capture_logs() as logs:
        attempt = judges.validate_answer(replace(what, history=(first,)))
        assert [issue.validator for issue in attempt.issues] == ["step_marker", "content_guard"]
        monkeypatch.setattr(judges, "_try_work", lambda *_: None)
        assert [issue.validator for issue in judges.repair(what).issues] == ["content_guard"]
    assert attempt.answer == "Ja."
    assert isinstance(decide_next([first, attempt]), Retry)
    assert [log["validator"] for log in logs] == ["content_guard"] * 2
    repaired = ValidationPool(60).repair(replace(what, text=attempt.answer, history=(first, attempt)))
    assert (repaired.text[:3], repaired.accepted) == ("Ja.", False)
    assert read == [], "this process reads no such reply"


def test_many_threads_share_a_few_children(install: Callable[[str], None], tmp_path: Path) -> None:
    install(f"time.sleep(0.02); open({str(tmp_path / 'seen')!r}, 'a').write(f'{{os.getpid()}}\\n'); return []")
    judges = ValidationPool(30, children=2)
    threads = [
        threading.Thread(target=lambda: [judges.validate_answer(case("Ja.", "own")) for _ in range(3)])
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert len(seen) == 18
    assert os.getpid() not in seen
    assert 1 <= len(set(seen)) <= 2
    assert set(idle(judges)) == set(seen), "children outlive the threads that asked them"


def test_a_child_that_died_while_it_had_nothing_to_do_costs_no_verdict() -> None:
    judges = ValidationPool(10)
    codes(judges, case(LONG, "step_marker"))
    [dead] = idle(judges)
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not alive(dead))
    with capture_logs() as logs:
        assert codes(judges, case(LONG, "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]
    assert logs == []
    assert idle(judges) != [dead]


def test_no_child_outlives_its_process_whatever_it_is_doing(install: Callable[[str], None], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    install(f"open({str(seen)!r}, 'w').write(str(os.getpid())); __import__('re').match(r'(a+)+$', 'a' * 64 + 'b')")
    with start_judging(tmp_path) as process:
        wait_for(lambda: seen.exists() and seen.read_text())
        process.kill()
    wait_for(lambda: not alive(int(seen.read_text())))


def start_judging(folder: Path, **more: Any) -> subprocess.Popen[bytes]:
    """Start a process that has the installed validator judge an answer."""
    program = (
        "from tests.integration.test_validation_pool import *; ValidationPool(600).validate_answer(case('Ja.', 'own'))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", f"if __name__ == '__main__':\n    {program}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])},
        **more,
    )

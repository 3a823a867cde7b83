"""Validators in child processes: one that hangs, dies or cannot be made costs a verdict, never a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support import alive, wait_for
from worker.enforcement.policy import Policy
from worker.turns.judges import CannotJudge, Case, Judges

OWN = """
import os, time
from worker.enforcement.validators.base import ResponseValidator

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


def case(text: str, *names: str, **more: Any) -> Case:
    return Case(text=text, history=(), names=names, root=Path.cwd(), context={"locale": "en"}, policy=Policy(**more))


def codes(judges: Judges, what: Case) -> list[tuple[str, str]]:
    return [(issue.validator, issue.code) for issue in judges.judge(what).issues]


def test_answers_are_judged_and_repaired_as_in_the_process_itself() -> None:
    judges = Judges(10)
    assert codes(judges, case("Ja.", "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]
    assert codes(judges, case("Ja.\n\n<!-- STEP: done -->", "step_marker")) == []
    assert judges.repair(case("Ja?", "step_marker")).step == "what"


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "__import__('re').match(r'(a+)+$', 'a' * 64 + 'b')", "os.kill(os.getpid(), 9)", "os._exit(0)"],
)
def test_a_validator_that_hangs_or_dies_is_blamed_and_the_others_are_heard(
    install: Callable[[str], None], body: str
) -> None:
    install(body)
    judges = Judges(3.0)
    found = codes(judges, case("Ja.", "own", "step_marker"))
    assert sorted(found) == [("own", "VALIDATOR_ERROR"), ("step_marker", "MISSING_STEP_MARKER")]
    assert codes(judges, case("Ja.", "step_marker")) == [("step_marker", "MISSING_STEP_MARKER")]


def test_this_process_goes_on_while_a_validator_holds_its_own(install: Callable[[str], None]) -> None:
    install("__import__('re').match(r'(a+)+$', 'a' * 64 + 'b')")
    judges, beats, done = Judges(1.5), 0, threading.Event()

    def work() -> None:
        judges.judge(case("Ja.", "own"))
        done.set()

    threading.Thread(target=work, daemon=True).start()
    while not done.wait(0.05):
        beats += 1
    assert beats, "a lease thread would have missed its beats"


def test_an_unknown_validator_cannot_judge() -> None:
    with pytest.raises(CannotJudge, match="step_markr"):
        Judges(5).judge(case("Ja.", "step_markr"))


def test_no_child_outlives_the_thread_that_judges() -> None:
    judges = Judges(5)
    pids: list[int] = []

    def work() -> None:
        judges.judge(case("Ja.", "step_marker"))
        pids.append(judges._own.child._process.pid)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    wait_for(lambda: not alive(pids[0]))

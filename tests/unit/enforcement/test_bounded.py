"""Our own validators are judged in the worker itself: their work has a bound, counted in operations, not in seconds.

What these counts cannot see, the inside of regular expressions and of C code, is measured by ratio in
``test_foreign_input.py``, on texts up to a mebibyte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, header_with
from tests.unit.enforcement.test_foreign_input import ADVERSARIAL, NOWHERE, PIECES
from worker.enforcement.child import MOST_CHARACTERS
from worker.enforcement.documents.document import parse
from worker.enforcement.policy import Policy
from worker.turns.judges import Case, judge_case, repair_case

OURS = ("step_marker", "adr_structure", "file_existence")
#: Steps of Python for each character of the texts, over a first attempt, a second one and a repair; and for none.
MOST_STEPS, FIXED_STEPS = 400, 30_000
SIZE = 4000


def case(text: str, *history: Any, names: tuple[str, ...] = OURS, root: Path = NOWHERE, **context: Any) -> Case:
    return Case(text=text, history=history, names=names, root=root, context=context, policy=Policy())


def work(text: str) -> None:
    """Two attempts, the second one judged beside the first, and a repair."""
    parse.cache_clear()
    first = judge_case(case(text))
    second = judge_case(case(text + "x", first))
    repair_case(case(second.answer, first, second))


def steps(of: Callable[[], object]) -> int:
    """How many lines, calls and returns of Python are executed."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        of()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_the_steps_stay_below_a_bound_for_each_character(kind: str) -> None:
    text = ADVERSARIAL[kind](1)[: 2 * SIZE]
    if not case(text).bounded:
        pytest.skip("names files: judged in a child")
    assert steps(lambda: work(text)) <= MOST_STEPS * len(text) + FIXED_STEPS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12), st.integers(1, 3))
@example(["## Akzeptanzkriterien\n", "- [ ] a\n", "```\n"], 3)
def test_what_is_repeated_costs_no_more_each_time(pieces: list[str], much: int) -> None:
    block = "".join(pieces)
    text = ADR + block * (much * SIZE // len(block))
    assume(case(text).bounded)
    assert steps(lambda: work(text)) <= MOST_STEPS * len(text) + FIXED_STEPS


def test_the_bound_is_broken_by_what_is_quadratic() -> None:
    def pairs(many: int) -> int:
        return sum(1 for a in range(many) for b in range(many) if a == b)

    assert steps(lambda: pairs(1000)) > MOST_STEPS * 1000 + FIXED_STEPS


@pytest.mark.parametrize(
    ("what", "so"),
    [
        (case("Ja."), True),
        (case("x" * MOST_CHARACTERS), True),
        (case("x" * (MOST_CHARACTERS + 1)), False),
        (case("x", files={"response.md": "y" * MOST_CHARACTERS}), False),
        (case("Ja.", names=("step_marker", "own")), False),
        (case("Ja.", names=()), True),
        (case(header_with("files:\n  modify:\n    - a.py\n")), False),
        (case(header_with("files:\n  modify:\n    - a.py\n"), names=("step_marker", "adr_structure")), True),
        (case("files: [a.py]", files={"ADR-1.md": ADR}), False),
        (case(ADR), True),
        (case("There are files."), True),
    ],
)
def test_only_short_texts_under_our_own_rules_that_name_no_files_are_judged_in_the_worker(what: Case, so: bool) -> None:
    assert what.bounded is so


def test_the_attempts_before_count_too() -> None:
    before = judge_case(case("y" * MOST_CHARACTERS))
    assert not case("Ja.", before).bounded


def test_what_is_judged_in_the_worker_never_looks_at_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("it looked at the file system")

    monkeypatch.setattr("worker.enforcement.validators.paths.Root.find", refused)
    for kind in ADVERSARIAL:
        text = ADVERSARIAL[kind](1)[:SIZE]
        if case(text).bounded:
            assert "VALIDATOR_ERROR" not in {issue.code for issue in judge_case(case(text)).issues}
    named = judge_case(case(header_with("files:\n  modify:\n    - a.py\n")))
    assert "VALIDATOR_ERROR" in {issue.code for issue in named.issues}

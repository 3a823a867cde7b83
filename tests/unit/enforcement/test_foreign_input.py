"""Answers are foreign input: no exception escapes, and time grows with the text, not with its square."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.growth import assert_linear
from tests.unit.enforcement.samples import ADR, HEADER, header_with
from worker.enforcement import (
    build_validators,
    decide_next,
    extract_step,
    repair_answer,
    run_validators,
    step_of,
    strip_marker,
    validate_attempt,
)
from worker.enforcement.documents.document import parse_document
from worker.enforcement.policy import Policy
from worker.enforcement.validator_process import MOST_CHARACTERS
from worker.turns.validation_pool import ValidationCase, repair_case, validate_case

#: Where no path of a test exists; nothing is written there.
NOWHERE = Path("/nonexistent-project")
ALL = build_validators(["step_marker", "adr_structure", "file_existence"], root=NOWHERE)

ADVERSARIAL: dict[str, Callable[[int], str]] = {
    "nested fences": lambda n: "".join("`" * (3 + i % 200) + "md\n" for i in range(200 * n)),
    "document fences": lambda n: "```markdown\n---\nadr_id: 1\n---\n```\n" * (1000 * n),
    "open document fences": lambda n: "```markdown\n---\nadr_id: 1\n" * (1000 * n),
    "10,000 headings": lambda n: ADR + "## a\n" * (10_000 * n),
    "ADR headings": lambda n: "# ADR-1\n\n" * (5000 * n),
    "headers": lambda n: "---\nadr_id: 1\n---\n" * (3000 * n),
    "rules": lambda n: "---\nadr\n# ADR-\n" * (5000 * n),
    "200 kB of <!--": lambda n: "<!--" * (50_000 * n),
    "comments that never end": lambda n: "<!--`" * (20_000 * n) + "<!-- STEP: done -->",
    "markers": lambda n: "`<!-- STEP: done --> " * (4000 * n),
    "blanks in markers": lambda n: ("<!--" + " " * 39 + "STEP" + " " * 39 + ":" + " " * 39) * (1000 * n),
    "quotes": lambda n: ADR + "> a\n" * (10_000 * n),
    "deep quotes": lambda n: ADR + (">" * 500 + "\n") * (200 * n),
    "criteria": lambda n: ADR + "- [ ] a\n" * (10_000 * n),
    "criteria sections": lambda n: ADR + "## Akzeptanzkriterien\n- [ ] a\n```\n- [ ] b\n```\n" * (2000 * n),
    "deep lists": lambda n: ADR + "".join("  " * (i % 300) + "- a\n" for i in range(500 * n)),
    "one line of dashes": lambda n: ADR + "- " * (50_000 * n),
    "lists and blank lines": lambda n: ADR + "- " * 1000 + "\n" * (20_000 * n),
    "1 MB line": lambda n: "adr_id " + "x" * (1_000_000 * n),
    "short lines": lambda n: ADR + "1\n" * (30_000 * n),
    "blank lines": lambda n: ADR + "\n" * (50_000 * n),
    "backticks": lambda n: "".join("`" * (i % 300 + 1) + " " for i in range(1000 * n)) + "<!-- STEP: done -->",
    "hashes": lambda n: ADR + "#" * (100_000 * n),
    "tags": lambda n: ADR + ("<a" + " b" * 400 + "\n") * (100 * n),
    "html": lambda n: ADR + "<div>\n" * (10_000 * n),
    "setext": lambda n: ADR + "a\n===\n" * (5000 * n),
    "links": lambda n: "http://" * (20_000 * n) + "?",
    "question marks": lambda n: "?" * (100_000 * n),
    "missing files": lambda n: header_with("files:\n  modify:\n" + "    - a.py\n" * (200 * n)),
    "keys": lambda n: HEADER[:-4] + "".join(f"k{i}: 1\n" for i in range(300 * n)) + "---\n# ADR-1\n",
    "brackets": lambda n: HEADER[:-4] + "a: " + "[" * (10_000 * n) + "\n---\n# ADR-1\n",
    "carriage returns": lambda n: ADR + "\r" * (100_000 * n),
    "NUL": lambda n: ADR + "\0" * (100_000 * n),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("work", [run_validators, repair_answer])
def test_twice_the_text_takes_about_twice_the_time(work: Callable[..., object], kind: str) -> None:
    texts = {size: ADVERSARIAL[kind](size) for size in (1, 2)}

    def once(size: int) -> None:
        parse_document.cache_clear()
        work(texts[size], ALL)

    assert_linear(once)


@pytest.mark.long
@pytest.mark.parametrize("name", ["step_marker", "adr_structure", "file_existence"])
def test_a_natural_megabyte_takes_about_twice_the_time_of_half_of_it(name: str) -> None:
    (validator,) = (validator for validator in ALL if validator.name == name)
    prose = "Ein Absatz über die Entscheidung, mit `Code` und **Betonung**, wie er in Antworten steht.\n\n"
    block = prose * 3 + "### Teil\n\n- [ ] ein Punkt\n- noch einer\n\n```python\nx = 1\ny = 2\n```\n\n"
    texts = {size: ADR + block * (size * 500_000 // len(block)) + "\n<!-- STEP: done -->" for size in (1, 2)}

    def once(size: int) -> None:
        parse_document.cache_clear()
        validator.validate(texts[size], {})

    assert_linear(once)


PIECES = [
    "---\n",
    "adr_id: 1\n",
    "title: x\n",
    "status: y\n",
    "files:\n",
    "  modify:\n",
    "    - a.py\n",
    "  create: [b]\n",
    "# ADR-1\n",
    "## Kontext\n",
    "## Entscheidung\n",
    "## Akzeptanzkriterien\n",
    "- [ ] a\n",
    "```markdown\n",
    "```\n",
    "<!-- STEP: done -->",
    "<!-- STEP: x -->",
    "<!-- STEP: unknown -->",
    "<!--",
    "-->",
    "> ",
    "\n",
    "text",
    "`",
    "    ",
    "\r\n",
    "\t",
    "\0",
    "\ud800",
    "😀",
    "- ",
    "1. ",
    "<pre>\n",
    "?",
    "&a [*a]",
    "  modify: [a.py, 'b']\n",
    "~~~\n",
]
answers = st.one_of(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.text(max_size=80))


@settings(max_examples=300, deadline=None)
@given(answers, answers)
def test_no_text_makes_anything_raise(first: str, second: str) -> None:
    history = [validate_attempt([], first, ALL)]
    history.append(validate_attempt(history, second, ALL))
    assert not getattr(decide_next(history), "fault", "")
    assert "VALIDATOR_ERROR" not in {issue.code for attempt in history for issue in attempt.issues}
    for text in (first, second):
        extract_step(text), step_of(text), strip_marker(text)


@settings(max_examples=300, deadline=None)
@given(answers)
def test_the_marker_validators_fallback_always_validates_and_twice_changes_nothing(text: str) -> None:
    step = ALL[0]
    repaired = repair_answer(text, [step])
    assert repaired.accepted
    again = repair_answer(repaired.text, [step], repaired.context)
    assert (again.text, again.changes) == (repaired.text, ())
    assert step.apply_fallback(repaired.text, {}) in (None, repaired.text)


@settings(max_examples=300, deadline=None)
@given(answers)
def test_mending_brings_no_error_and_twice_changes_nothing(text: str) -> None:
    before = {(issue.validator, issue.code) for issue in run_validators(text, ALL) if issue.is_error}
    repaired = repair_answer(text, ALL)
    assert {(issue.validator, issue.code) for issue in repaired.issues if issue.is_error} <= before
    assert tuple(run_validators(repaired.text, ALL, repaired.context)) == repaired.issues
    assert repair_answer(repaired.text, ALL, repaired.context).text == repaired.text


@settings(max_examples=200, deadline=None)
@given(answers)
def test_examining_never_changes_its_mind(text: str) -> None:
    found = run_validators(text, ALL)
    parse_document.cache_clear()
    assert run_validators(text, ALL) == found


# Our own validators are judged in the worker itself: their work has a bound, counted in operations, not in seconds.
# What these counts cannot see, the inside of regular expressions and of C code, is measured by ratio in
# ``test_foreign_input.py``, on texts up to a mebibyte.

OURS = ("step_marker", "adr_structure", "file_existence")
#: Steps of Python for each character of the texts, over a first attempt, a second one and a repair; and for none.
MOST_STEPS, FIXED_STEPS = 400, 30_000
SIZE = 4000


def case(
    text: str, *history: Any, names: tuple[str, ...] = OURS, root: Path = NOWHERE, **context: Any
) -> ValidationCase:
    return ValidationCase(text=text, history=history, names=names, root=root, context=context, policy=Policy())


def work(text: str) -> None:
    """Two attempts, the second one judged beside the first, and a repair."""
    parse_document.cache_clear()
    first = validate_case(case(text))
    second = validate_case(case(text + "x", first))
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
def test_only_short_texts_under_our_own_rules_that_name_no_files_are_judged_in_the_worker(
    what: ValidationCase, so: bool
) -> None:
    assert what.bounded is so


def test_the_attempts_before_count_too() -> None:
    before = validate_case(case("y" * MOST_CHARACTERS))
    assert not case("Ja.", before).bounded


def test_what_is_judged_in_the_worker_never_looks_at_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("it looked at the file system")

    monkeypatch.setattr("worker.enforcement.validators.paths.Root.find", refused)
    for kind in ADVERSARIAL:
        text = ADVERSARIAL[kind](1)[:SIZE]
        if case(text).bounded:
            assert "VALIDATOR_ERROR" not in {issue.code for issue in validate_case(case(text)).issues}
    named = validate_case(case(header_with("files:\n  modify:\n    - a.py\n")))
    assert "VALIDATOR_ERROR" in {issue.code for issue in named.issues}

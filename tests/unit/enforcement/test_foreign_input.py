"""Answers are foreign input: no exception escapes, and time grows with the text, not with its square."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.growth import assert_linear
from tests.unit.enforcement.samples import ADR, HEADER, header_with
from worker.enforcement import (
    build_validators,
    decide,
    examine,
    extract_step,
    judge,
    repair_answer,
    step_of,
    strip_marker,
)
from worker.enforcement.documents.document import parse

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
@pytest.mark.parametrize("work", [examine, repair_answer])
def test_twice_the_text_takes_about_twice_the_time(work: Callable[..., object], kind: str) -> None:
    texts = {size: ADVERSARIAL[kind](size) for size in (1, 2)}

    def once(size: int) -> None:
        parse.cache_clear()
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
        parse.cache_clear()
        validator.validate(texts[size], {})

    assert_linear(once)


PIECES = [
    "---\n", "adr_id: 1\n", "title: x\n", "status: y\n", "files:\n", "  modify:\n", "    - a.py\n", "  create: [b]\n",
    "# ADR-1\n", "## Kontext\n", "## Entscheidung\n", "## Akzeptanzkriterien\n", "- [ ] a\n", "```markdown\n", "```\n",
    "<!-- STEP: done -->", "<!-- STEP: x -->", "<!-- STEP: unknown -->", "<!--", "-->", "> ", "\n", "text", "`", "    ",
    "\r\n", "\t", "\0", "\ud800", "😀", "- ", "1. ", "<pre>\n", "?", "&a [*a]", "  modify: [a.py, 'b']\n", "~~~\n",
]  # fmt: skip
answers = st.one_of(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.text(max_size=80))


@settings(max_examples=300, deadline=None)
@given(answers, answers)
def test_no_text_makes_anything_raise(first: str, second: str) -> None:
    history = [judge([], first, ALL)]
    history.append(judge(history, second, ALL))
    decide(history)
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
    before = {(issue.validator, issue.code) for issue in examine(text, ALL) if issue.is_error}
    repaired = repair_answer(text, ALL)
    assert {(issue.validator, issue.code) for issue in repaired.issues if issue.is_error} <= before
    assert tuple(examine(repaired.text, ALL, repaired.context)) == repaired.issues
    assert repair_answer(repaired.text, ALL, repaired.context).text == repaired.text


@settings(max_examples=200, deadline=None)
@given(answers)
def test_examining_never_changes_its_mind(text: str) -> None:
    found = examine(text, ALL)
    parse.cache_clear()
    assert examine(text, ALL) == found

"""The fallback: active validators only, partial gains kept, other bytes untouched, judged again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR, codes, header_with
from worker.enforcement import (
    ADRStructureValidator,
    FileExistenceValidator,
    ResponseValidator,
    StepMarkerValidator,
    ValidationIssue,
    examine,
    repair_answer,
)

STEP = StepMarkerValidator()


@pytest.fixture
def files(tmp_path: Path) -> FileExistenceValidator:
    (tmp_path / "there.py").touch()
    return FileExistenceValidator(tmp_path)


def moved(files: FileExistenceValidator, before: str) -> str:
    """The ``files`` of the header after the fallback; everything around them must be unchanged."""
    text = "Einleitung.\n\n" + header_with(f"# Kommentar\nfiles:\n{before}skills: ['a']  # bleibt\n")
    repaired = files.apply_fallback(text, {})
    assert repaired is not None
    head, tail = text.split(before)
    assert repaired.startswith(head)
    assert repaired.endswith(tail)
    assert "FILE_NOT_FOUND" not in codes(files.validate(repaired, {}))
    assert files.apply_fallback(repaired, {}) is None  # twice changes nothing
    return repaired[len(head) : -len(tail)]


def test_missing_files_move_and_comments_quotes_and_order_stay(files: FileExistenceValidator) -> None:
    before = '  modify:\n    - there.py\n    - gone.py  # warum\n    - "b c.py"\n  create:\n    - new.py\n  docs: []\n'
    after = '  modify:\n    - there.py\n  create:\n    - new.py\n    - gone.py  # warum\n    - "b c.py"\n  docs: []\n'
    assert moved(files, before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  create:\n  modify:\n    - a.py\n", "  create:\n    - a.py\n  modify: []\n"),
        ("  create: ~\n  modify: [a.py]\n", "  create: \n    - a.py\n  modify: []\n"),
        ("  modify:\n  - a.py\n  - there.py\n", "  create:\n  - a.py\n  modify:\n  - there.py\n"),
        ("  modify: [a.py, there.py, 'b.py']\n", "  create:\n    - a.py\n    - 'b.py'\n  modify: [there.py]\n"),
        ("  create: [n.py]\n  modify: [there.py, a.py]\n", "  create: [n.py, a.py]\n  modify: [there.py]\n"),
        ("  create: []\n  modify:\n    - a, b.py\n", "  create: ['a, b.py']\n  modify: []\n"),
        ("  create:\n    - a.py\n  modify:\n    - a.py\n", "  create:\n    - a.py\n  modify: []\n"),
        ("  modify:\n    - a.py\n    - a.py\n", "  create:\n    - a.py\n  modify: []\n"),
        ("  {modify: [a.py], docs: []}\n", "  {create: [a.py], modify: [], docs: []}\n"),
    ],
)
def test_every_way_to_write_the_lists_is_edited_in_place(
    files: FileExistenceValidator, before: str, after: str
) -> None:
    assert moved(files, before) == after


def test_windows_line_endings_stay(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify:\n    - a.py\n").replace("\n", "\r\n")
    repaired = files.apply_fallback(text, {})
    assert repaired == text.replace("  modify:\r\n    - a.py\r\n", "  create:\r\n    - a.py\r\n  modify: []\r\n")


def test_an_adr_in_a_fence_is_edited_in_its_place(files: FileExistenceValidator) -> None:
    inner = header_with("files:\n  modify: [a.py]\n")
    repaired = repair_answer(f"Hier:\n\n```markdown\n{inner}```\n\n<!-- STEP: generate -->", [STEP, files])
    assert repaired.accepted
    assert "```markdown\n---\n" in repaired.text
    assert "  create:\n    - a.py\n  modify: []\n" in repaired.text


@pytest.mark.parametrize("header", ["files:\n  modify: &m [a.py]\n  create: *m\n", "files:\n  modify: a.py\n"])
def test_a_header_that_cannot_be_edited_surely_is_left_alone(files: FileExistenceValidator, header: str) -> None:
    text = header_with(header)
    assert files.apply_fallback(text, {}) in (None, text)


def test_each_move_is_told_to_the_user(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify: [a.py, b.py]\n")
    assert repair_answer(text, [files], {"locale": "de"}).changes == (
        "a.py: von files.modify nach files.create verschoben",
        "b.py: von files.modify nach files.create verschoben",
    )
    assert repair_answer(text, [files]).changes[0] == "a.py: moved from files.modify to files.create"


def test_only_active_validators_judge_and_mend() -> None:
    broken = ADR.replace("## Kontext", "## X")
    assert repair_answer(broken, [STEP]).accepted
    assert not repair_answer(broken, [STEP, ADRStructureValidator()]).accepted


def test_partial_gains_are_kept_and_told(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify: [a.py]\n").replace("## Kontext", "## X")
    repaired = repair_answer(text, [STEP, ADRStructureValidator(), files])
    assert not repaired.accepted
    assert codes(repaired.fixed_issues) == ["MISSING_STEP_MARKER", "FILE_NOT_FOUND"]
    assert codes(repaired.issues) == ["MISSING_ADR_SECTION"]
    assert len(repaired.changes) == 2
    assert repaired.text.endswith("<!-- STEP: generate -->")


def test_the_step_marker_comes_last_and_is_judged_with_the_rest(files: FileExistenceValidator) -> None:
    repaired = repair_answer(header_with("files:\n  modify: [a.py]\n"), [STEP, files])
    assert "moved" in repaired.changes[0]
    assert "STEP marker" in repaired.changes[1]
    assert examine(repaired.text, [STEP, files]) == []


def test_unknown_is_accepted_from_the_fallback_only_where_it_is_told() -> None:
    repaired = repair_answer("Hallo.", [STEP])
    assert repaired.accepted
    assert codes(examine(repaired.text, [STEP])) == ["INVALID_STEP"]
    assert examine(repaired.text, [STEP], repaired.context) == []


def test_an_answer_that_needs_nothing_is_left_alone() -> None:
    repaired = repair_answer("Gut.\n<!-- STEP: Done -->", [STEP])
    assert (repaired.text, repaired.changes, repaired.step, repaired.step_source) == (
        "Gut.\n<!-- STEP: Done -->",
        (),
        "done",
        "marker",
    )


def test_files_the_agent_wrote_are_repaired_too(files: FileExistenceValidator) -> None:
    adr = header_with("files:\n  modify: [a.py]\n")
    repaired = repair_answer(
        "Liegt bei. <!-- STEP: generate -->", [STEP, files], {"files": {"ADR-040.md": adr, "x.py": "1"}}
    )
    assert repaired.accepted
    assert list(repaired.files) == ["ADR-040.md"]
    assert "  create:\n    - a.py\n" in repaired.files["ADR-040.md"]
    assert repaired.changes == ("ADR-040.md: a.py: moved from files.modify to files.create",)


class Shouting(ResponseValidator):
    """Wants upper case; its fallback does what the test says."""

    name = "shouting"

    def __init__(self, fallback: Any) -> None:
        self.fallback = fallback

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        return [] if response.isupper() else [ValidationIssue("NOT_LOUD", "leise", "schrei")]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        result: str | None = self.fallback(response)
        return result


def test_a_validator_of_ones_own_is_repaired_and_told() -> None:
    repaired = repair_answer("abc", [Shouting(str.upper)])
    assert (repaired.text, repaired.accepted, repaired.changes) == ("ABC", True, ("shouting: repaired",))


@pytest.mark.parametrize("fallback", [lambda text: 1 / 0, lambda text: 5, lambda text: "noch leise", lambda text: None])
def test_a_fallback_that_fails_or_helps_nothing_changes_nothing(fallback: Any) -> None:
    repaired = repair_answer("abc", [Shouting(fallback)])
    assert (repaired.text, repaired.accepted, repaired.changes) == ("abc", False, ())


def test_an_empty_text_can_be_a_fallbacks_result() -> None:
    class Silent(Shouting):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("NOT_SILENT", "m", "f")] if response else []

    assert repair_answer("abc", [Silent(lambda text: "")]).text == ""


def test_a_fallback_that_brings_another_error_is_not_taken() -> None:
    marked = "abc\n\n<!-- STEP: done -->"
    repaired = repair_answer(marked, [STEP, Shouting(lambda text: "ABC")])
    assert repaired.text == marked


def test_a_fallback_that_brings_an_error_for_two_is_not_taken() -> None:
    class Twice(Shouting):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [] if response.isupper() else [ValidationIssue(code, "m", "f") for code in ("ONE", "TWO")]

    marked = "abc\n\n<!-- STEP: done -->"
    assert repair_answer(marked, [STEP, Twice(lambda text: "ABC")]).text == marked

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
    mend,
)

STEP = StepMarkerValidator()


@pytest.fixture
def files(tmp_path: Path) -> FileExistenceValidator:
    (tmp_path / "there.py").touch()
    return FileExistenceValidator(tmp_path)


def moved(files: FileExistenceValidator, before: str) -> str:
    """The ``files`` of the header after the fallback; everything around them must be unchanged."""
    text = "Einleitung.\n\n" + header_with(f"# Kommentar\nfiles:\n{before}skills: ['a']  # bleibt\n")
    mended = files.apply_fallback(text, {})
    assert mended is not None
    head, tail = text.split(before)
    assert mended.startswith(head)
    assert mended.endswith(tail)
    assert "FILE_NOT_FOUND" not in codes(files.validate(mended, {}))
    assert files.apply_fallback(mended, {}) is None  # twice changes nothing
    return mended[len(head) : -len(tail)]


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
    mended = files.apply_fallback(text, {})
    assert mended == text.replace("  modify:\r\n    - a.py\r\n", "  create:\r\n    - a.py\r\n  modify: []\r\n")


def test_an_adr_in_a_fence_is_edited_in_its_place(files: FileExistenceValidator) -> None:
    inner = header_with("files:\n  modify: [a.py]\n")
    mended = mend(f"Hier:\n\n```markdown\n{inner}```\n\n<!-- STEP: generate -->", [STEP, files])
    assert mended.accepted
    assert "```markdown\n---\n" in mended.text
    assert "  create:\n    - a.py\n  modify: []\n" in mended.text


@pytest.mark.parametrize("header", ["files:\n  modify: &m [a.py]\n  create: *m\n", "files:\n  modify: a.py\n"])
def test_a_header_that_cannot_be_edited_surely_is_left_alone(files: FileExistenceValidator, header: str) -> None:
    text = header_with(header)
    assert files.apply_fallback(text, {}) in (None, text)


def test_each_move_is_told_to_the_user(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify: [a.py, b.py]\n")
    assert mend(text, [files]).changes == (
        "a.py: von files.modify nach files.create verschoben",
        "b.py: von files.modify nach files.create verschoben",
    )
    assert mend(text, [files], {"locale": "en"}).changes[0] == "a.py: moved from files.modify to files.create"


def test_only_active_validators_judge_and_mend() -> None:
    broken = ADR.replace("## Kontext", "## X")
    assert mend(broken, [STEP]).accepted
    assert not mend(broken, [STEP, ADRStructureValidator()]).accepted


def test_partial_gains_are_kept_and_told(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify: [a.py]\n").replace("## Kontext", "## X")
    mended = mend(text, [STEP, ADRStructureValidator(), files])
    assert not mended.accepted
    assert codes(mended.fixed_issues) == ["MISSING_STEP_MARKER", "FILE_NOT_FOUND"]
    assert codes(mended.issues) == ["MISSING_ADR_SECTION"]
    assert len(mended.changes) == 2
    assert mended.text.endswith("<!-- STEP: generate -->")


def test_the_step_marker_comes_last_and_is_judged_with_the_rest(files: FileExistenceValidator) -> None:
    mended = mend(header_with("files:\n  modify: [a.py]\n"), [STEP, files])
    assert "verschoben" in mended.changes[0]
    assert "STEP-Marker" in mended.changes[1]
    assert examine(mended.text, [STEP, files]) == []


def test_unknown_is_accepted_from_the_fallback_only_where_it_is_told() -> None:
    mended = mend("Hallo.", [STEP])
    assert mended.accepted
    assert codes(examine(mended.text, [STEP])) == ["INVALID_STEP"]
    assert examine(mended.text, [STEP], mended.context) == []


def test_an_answer_that_needs_nothing_is_left_alone() -> None:
    mended = mend("Gut.\n<!-- STEP: Done -->", [STEP])
    assert (mended.text, mended.changes, mended.step, mended.step_source) == (
        "Gut.\n<!-- STEP: Done -->",
        (),
        "done",
        "marker",
    )


def test_files_the_agent_wrote_are_mended_too(files: FileExistenceValidator) -> None:
    adr = header_with("files:\n  modify: [a.py]\n")
    mended = mend("Liegt bei. <!-- STEP: generate -->", [STEP, files], {"files": {"ADR-040.md": adr, "x.py": "1"}})
    assert mended.accepted
    assert list(mended.files) == ["ADR-040.md"]
    assert "  create:\n    - a.py\n" in mended.files["ADR-040.md"]
    assert mended.changes == ("ADR-040.md: a.py: von files.modify nach files.create verschoben",)


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


def test_a_validator_of_ones_own_is_mended_and_told() -> None:
    mended = mend("abc", [Shouting(str.upper)])
    assert (mended.text, mended.accepted, mended.changes) == ("ABC", True, ("shouting: automatisch korrigiert",))


@pytest.mark.parametrize("fallback", [lambda text: 1 / 0, lambda text: 5, lambda text: "noch leise", lambda text: None])
def test_a_fallback_that_fails_or_helps_nothing_changes_nothing(fallback: Any) -> None:
    mended = mend("abc", [Shouting(fallback)])
    assert (mended.text, mended.accepted, mended.changes) == ("abc", False, ())


def test_an_empty_text_can_be_a_fallbacks_result() -> None:
    class Silent(Shouting):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("NOT_SILENT", "m", "f")] if response else []

    assert mend("abc", [Silent(lambda text: "")]).text == ""


def test_a_fallback_that_brings_another_error_is_not_taken() -> None:
    marked = "abc\n\n<!-- STEP: done -->"
    mended = mend(marked, [STEP, Shouting(lambda text: "ABC")])
    assert mended.text == marked


def test_a_fallback_that_brings_an_error_for_two_is_not_taken() -> None:
    class Twice(Shouting):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [] if response.isupper() else [ValidationIssue(code, "m", "f") for code in ("ONE", "TWO")]

    marked = "abc\n\n<!-- STEP: done -->"
    assert mend(marked, [STEP, Twice(lambda text: "ABC")]).text == marked

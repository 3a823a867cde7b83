"""Files that an ADR names (ADR-038 section 4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.enforcement.samples import ADR, codes, header_with
from worker.enforcement import ADRStructureValidator, FileExistenceValidator, ValidationIssue, examine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "cache.py").write_text("x = 1\n")
    (root / "docs").mkdir()
    (root / "docs" / "a.md").write_text("# A\n")
    return root


def issues_of(root: Path, files: str, **context: object) -> list[ValidationIssue]:
    return FileExistenceValidator(helix_root=root).validate(header_with(files), context)


def modify(root: Path, path: str) -> list[str]:
    return codes(issues_of(root, f"files:\n  modify:\n    - {path}\n"))


def test_a_file_that_exists_is_fine_and_a_missing_one_is_told_with_its_line(root: Path) -> None:
    (issue,) = issues_of(root, "files:\n  modify:\n    - src/cache.py\n    - src/gone.py\n")
    assert issue.message == "files.modify names a file that does not exist: src/gone.py"
    assert issue.fix_hint == "Remove 'src/gone.py' from files.modify or move it to files.create"
    assert (issue.code, issue.severity, issue.line) == ("FILE_NOT_FOUND", "error", 8)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../../../etc/passwd",
        "src/../../x",
        "'~/x'",
        "file:///etc/passwd",
        "C:\\x",
        "'%2e%2e/%2e%2e/etc/passwd'",
        "..\\x",
        "https://example.org/a.py",
    ],
)
def test_a_path_that_leaves_the_project_is_outside(root: Path, path: str) -> None:
    assert modify(root, path) == ["OUTSIDE_ROOT"]


def test_whether_something_exists_outside_cannot_be_asked(root: Path) -> None:
    (root.parent / "secret").write_text("x")
    (root / "link").symlink_to(root.parent)
    for path in ("../secret", "../nothing", "link/secret", "link/nothing"):
        assert modify(root, path) == ["OUTSIDE_ROOT"]


def test_links_inside_the_project_are_followed_and_loops_are_missing(root: Path) -> None:
    (root / "inner").symlink_to(root / "src")
    (root / "loop").symlink_to(root / "loop")
    assert modify(root, "inner/cache.py") == []
    assert modify(root, "loop/x") == ["FILE_NOT_FOUND"]


def test_only_regular_files_are_files(root: Path) -> None:
    os.mkfifo(root / "pipe")
    for path in ("src", ".", "pipe", "./src/"):
        assert modify(root, path) == ["NOT_A_FILE"]
    for path in ("''", "'  '"):
        assert modify(root, path) == ["INVALID_PATH"]


def test_a_text_instead_of_a_list_is_one_issue(root: Path) -> None:
    assert codes(issues_of(root, "files:\n  modify: src/a.py\n")) == ["INVALID_FILES"]
    assert codes(issues_of(root, "files: src/a.py\n")) == ["INVALID_FILES"]
    assert codes(issues_of(root, "files:\n  - a\n")) == ["INVALID_FILES"]


def test_numbers_mappings_and_endless_names_are_issues_and_no_crash(root: Path) -> None:
    assert modify(root, "5") == ["FILE_NOT_FOUND"]
    assert modify(root, "{a: b}") == ["INVALID_FILES"]
    assert modify(root, "") == ["INVALID_FILES"]
    for path in ("x" * 5000, "x" * 300, "ä" * 200, '"a\\0b"', '"a\\nb"', "a/*.py", "src/{a,b}.py"):
        assert modify(root, path) == ["INVALID_PATH"]


@pytest.mark.parametrize("empty", ["", " []", " ~"])
def test_empty_lists_are_fine(root: Path, empty: str) -> None:
    assert issues_of(root, f"files:\n  modify:{empty}\n  create:{empty}\n") == []
    assert issues_of(root, f"files:{empty if empty != ' []' else ' {}'}\n") == []


def test_a_rule_before_the_header_hides_nothing(root: Path) -> None:
    text = "Vorab\n\n---\n\n" + header_with("files:\n  modify: [src/gone.py]\n")
    assert codes(FileExistenceValidator(root).validate(text, {})) == ["FILE_NOT_FOUND"]


def test_invalid_yaml_is_told_and_not_silently_valid(root: Path) -> None:
    assert codes(issues_of(root, "files: [\n")) == ["INVALID_YAML"]
    both = [ADRStructureValidator(), FileExistenceValidator(root)]
    assert codes(examine(header_with("files: [\n"), both)) == ["INVALID_YAML"]  # told once


def test_front_matter_that_is_no_adr_is_not_judged(root: Path) -> None:
    assert FileExistenceValidator(root).validate("---\nfiles:\n  modify: [gone]\n---\n\nText\n", {}) == []


def test_a_near_name_is_suggested(root: Path) -> None:
    (issue,) = issues_of(root, "files:\n  modify: [scr/cahce.py]\n")
    assert issue.fix_hint.endswith("(src/cache.py?)")


@pytest.mark.parametrize("suffix", [":12", ":12-30", "#L3", " (Zeile 3)", " (neu)", " -> neu"])
def test_a_line_number_or_remark_behind_a_path_is_a_warning(root: Path, suffix: str) -> None:
    (issue,) = issues_of(root, f'files:\n  modify:\n    - "src/cache.py{suffix}"\n')
    assert (issue.code, issue.severity) == ("PATH_WITH_SUFFIX", "warning")
    assert modify(root, f'"src/gone.py{suffix}"') == ["FILE_NOT_FOUND"]


def test_the_other_lists_are_judged_by_what_they_mean(root: Path) -> None:
    files = "files:\n  create: [src/cache.py, src/new.py]\n  docs: [docs/a.md, docs/b.md]\n  delete: [src/gone.py]\n"
    issues = issues_of(root, files)
    assert codes(issues) == ["FILE_ALREADY_EXISTS", "DOC_NOT_FOUND", "DELETE_NOT_FOUND"]
    assert {issue.severity for issue in issues} == {"warning"}


def test_the_agents_hooks_may_be_created_outside_and_nothing_else(root: Path) -> None:  # C10, ADR-036
    assert issues_of(root, "files:\n  create:\n    - ~/.claude/hooks/session-end.sh\n") == []
    assert codes(issues_of(root, "files:\n  create: [~/.bashrc]\n")) == ["OUTSIDE_ROOT"]
    assert codes(issues_of(root, "files:\n  create: ['~/.claude/hooks/../../.bashrc']\n")) == ["OUTSIDE_ROOT"]


def test_an_adr_in_a_file_is_judged_too(root: Path) -> None:
    text = header_with("files:\n  modify: [src/gone.py]\n")
    (issue,) = FileExistenceValidator(root).validate("Liegt bei.", {"files": {"ADR-040.md": text}})
    assert (issue.code, issue.file) == ("FILE_NOT_FOUND", "ADR-040.md")


def test_a_root_that_does_not_exist_makes_everything_missing(tmp_path: Path) -> None:
    text = header_with("files:\n  modify: [a.py]\n")
    assert codes(FileExistenceValidator(tmp_path / "nowhere").validate(text, {})) == ["FILE_NOT_FOUND"]


def test_an_adr_without_files_is_fine(root: Path) -> None:
    assert FileExistenceValidator(root).validate(ADR, {}) == []

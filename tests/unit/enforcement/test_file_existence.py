"""Files that an ADR names (ADR-038 section 4)."""

import os
from pathlib import Path

import pytest

from tests.unit.enforcement.samples import ADR, codes, header_with
from worker.enforcement import (
    ADRStructureValidator,
    FileExistenceValidator,
    ValidationIssue,
    repair_answer,
    run_validators,
)
from worker.enforcement.documents.frontmatter import Node
from worker.enforcement.documents.header_lines import move_entries
from worker.enforcement.validators import paths
from worker.enforcement.validators.paths import MAX_COMPARED, PathTarget, Root


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
    assert codes(run_validators(header_with("files: [\n"), both)) == ["INVALID_YAML"]  # told once


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


# Paths in ADRs: odd names that exist are fine, and thousands that do not cost little.

ODD = [
    "app/[id]/page.tsx",
    "app/[...all]/page.tsx",
    "pages/[slug].tsx",
    "app/[[...opt]]/x.ts",
    "docs/a\xa0b.md",
    "👩\u200d💻.md",
]


def issues(root: Path, name: str, *entries: str) -> list[str]:
    quoted = "".join(f'    - "{entry}"\n' for entry in entries)
    return codes(FileExistenceValidator(root).validate(header_with(f"files:\n  {name}:\n{quoted}"), {}))


def make(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()


@pytest.mark.parametrize("name", [*ODD, "a*b.py", "what?.md", "{a,b}.py", "[0-9].py"])
def test_a_name_that_looks_like_a_pattern_is_fine_when_it_exists(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    assert issues(tmp_path, "modify", name) == []


@pytest.mark.parametrize(
    "name", ["src/*.py", "what?.md", "{a,b}.py", "src/[0-9].py", "[a-z]/x.py", "a\xa0b.md", "\u202ea.py"]
)
def test_a_pattern_that_names_no_file_is_no_path(tmp_path: Path, name: str) -> None:
    assert issues(tmp_path, "modify", name) == ["INVALID_PATH"]


def test_a_route_that_is_missing_is_a_missing_file_and_may_be_created(tmp_path: Path) -> None:
    assert issues(tmp_path, "modify", *ODD[:4]) == ["FILE_NOT_FOUND"] * 4
    assert issues(tmp_path, "create", *ODD[:4]) == []


@pytest.mark.parametrize("name", ["a\x07b.py", "a\x00b.py", "\ud800.py", "", " "])
def test_a_name_no_file_can_have_is_never_looked_up(tmp_path: Path, name: str) -> None:
    assert Root.from_path(tmp_path).find(name) is PathTarget.UNUSABLE


def test_a_pattern_leads_nowhere_outside(tmp_path: Path) -> None:
    assert issues(tmp_path, "modify", "../[id]/x.py", "../*.py") == ["OUTSIDE_ROOT"] * 2


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    for number in range(480):
        (tmp_path / "src" / f"module_{number:03}.py").touch()
    return tmp_path


def test_suggestions_compare_a_bounded_number_of_names(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    near = paths.get_close_matches  # type: ignore[attr-defined]
    monkeypatch.setattr(
        paths, "get_close_matches", lambda name, names, **more: compared.append(len(names)) or near(name, names, **more)
    )
    for count in (100, 1_800):
        compared.clear()
        entries = ", ".join(f"src/modul_{number}.py" for number in range(count))
        found = FileExistenceValidator(crowded).validate(header_with(f"files:\n  modify: [{entries}]\n"), {})
        assert codes(found) == ["FILE_NOT_FOUND"] * count
        assert 0 < sum(compared) <= MAX_COMPARED
    assert "src/module_" in found[0].fix_hint  # the first ones are helped


def test_the_bound_holds_over_all_adrs_of_an_answer(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    monkeypatch.setattr(paths, "get_close_matches", lambda name, names, **more: compared.append(len(names)) or [])
    text = "\n\n".join(header_with(f"files:\n  modify: [src/modul_{number}.py]\n") for number in range(19))
    FileExistenceValidator(crowded).validate(text, {})
    assert sum(compared) <= MAX_COMPARED


@pytest.mark.parametrize("stays", ["last", "first", "middle", "none"])
def test_taking_entries_out_of_a_list_looks_at_each_once(stays: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]

    def counted(one: Node, other: object) -> bool:
        looks[0] += 1
        return one is other

    names = [f"no/f{number}.py" for number in range(600)]
    keep = {"last": 599, "first": 0, "middle": 300}.get(stays)
    header = f"files:\n  modify: [{', '.join(names)}]\n"
    gone = {name for at, name in enumerate(names) if at != keep}
    monkeypatch.setattr(Node, "__eq__", counted)
    monkeypatch.setattr(Node, "__hash__", object.__hash__)
    moved = move_entries(header, gone, source="modify", target="create")
    kept = f"[{names[keep]}]" if keep is not None else "[]"
    assert moved is not None
    assert f"modify: {kept}" in moved
    assert moved.index(names[5]) < moved.index(names[7])
    assert looks[0] < 10 * len(names)


def test_eighteen_hundred_missing_paths_are_repaired(crowded: Path) -> None:
    entries = ", ".join([*(f"src/modul_{number}.py" for number in range(1_800)), "src/module_000.py"])
    text = header_with(f"files:\n  modify: [{entries}]\n")
    repaired = repair_answer(text, [FileExistenceValidator(crowded)])
    assert repaired.accepted
    assert "modify: [src/module_000.py]" in repaired.text
    assert len(repaired.changes) == 1_800

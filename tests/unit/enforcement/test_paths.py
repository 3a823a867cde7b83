"""Paths in ADRs: odd names that exist are fine, and thousands that do not cost little."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.enforcement.samples import codes, header_with
from worker.enforcement import FileExistenceValidator, repair_answer
from worker.enforcement.documents.frontmatter import Node
from worker.enforcement.documents.header_lines import move_entries
from worker.enforcement.validators import paths
from worker.enforcement.validators.paths import MAX_COMPARED, PathTarget, Root

ODD = [
    "app/[id]/page.tsx", "app/[...all]/page.tsx", "pages/[slug].tsx", "app/[[...opt]]/x.ts",
    "docs/a\xa0b.md", "👩\u200d💻.md",
]  # fmt: skip


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
    assert Root.at(tmp_path).find(name) is PathTarget.UNUSABLE


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

"""A restore writes below HELIX_ROOT alone: whatever link stands there, nothing behind it is written or changed."""

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.errors import RestoreRefused
from api_client.contract.settings import Settings
from tests.fault.staged.restore import DUMP, Forged, tree
from worker.plugins.backup import restoring, saving
from worker.plugins.backup.archive import iterate_contents, read_manifest

FILE = "projects/sessions/s/output/response.md"
FOLDERS = ["projects", "projects/sessions", "projects/sessions/s", "projects/sessions/s/output", "adr", "work"]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    (folder / "sessions" / "s" / "output").mkdir(parents=True)
    (folder / "response.md").write_text("theirs")
    folder.chmod(0o700)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Settings:
    root = tmp_path / "root"
    root.mkdir()
    return Settings(root=root, namespace="links")


def archive(settings: Settings, folder: Path) -> Path:
    """One with a folder that all may write to, and a file, at each place."""
    entries = []
    for name in ["state", *(f"root/{each}" for each in FOLDERS)]:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o777
        entries.append(entry)
    files = {"store.rdb": DUMP, "keys.json": b"{}", "state/helix.toml": b"", f"root/{FILE}": b"ours"}
    files |= {"root/adr/ADR-1.md": b"ours", "root/work/phases/p/status.json": b"{}"}
    path = folder / "archive"
    Forged(files=files, members=entries, facts={"namespace": settings.namespace, "settings": []}).write(path)
    return path


def restore_files(settings: Settings, path: Path) -> None:
    """A restore without its store."""
    restoring._restore_files(path, read_manifest(path, saving.STORE), restoring._RestorePaths(settings))


LINKS: dict[str, Callable[[Path], str]] = {
    "absolute": str,
    "relative": lambda victim: f"../{victim.name}",
    "dangling": lambda victim: str(victim / "nothing"),
    "to a file": lambda victim: str(victim / "response.md"),
    "to itself": lambda _: "self",
}


@pytest.mark.parametrize("at", [*FOLDERS, "work/phases", "work/phases/p", ".helix"])
@pytest.mark.parametrize("kind", LINKS)
def test_a_link_in_the_place_of_a_folder_is_refused_and_all_stays_as_it_was(
    empty: Settings, victim: Path, tmp_path: Path, at: str, kind: str
) -> None:
    place = empty.root / at
    place.parent.mkdir(parents=True, exist_ok=True)
    target = LINKS[kind](victim)
    place.symlink_to(
        os.path.relpath(victim, place.parent) if kind == "relative" else place.name if kind == "to itself" else target
    )
    path, before = archive(empty, tmp_path), tree(victim, empty.root)
    with pytest.raises(RestoreRefused, match="is a link, and a restore follows none"):
        restoring.restore_archive(empty, path, contextlib.nullcontext)
    assert tree(victim, empty.root) == before


def test_a_root_that_is_a_link_itself_is_what_its_operator_named(empty: Settings, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(empty.root)
    restoring.restore_archive(replace(empty, root=tmp_path / "named"), archive(empty, tmp_path), contextlib.nullcontext)
    assert (empty.root / FILE).read_text() == "ours"
    assert (empty.root / "adr").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("when", ["before the files", "before the modes"])
@pytest.mark.parametrize("at", [*FOLDERS, "work/phases"])
def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    empty: Settings, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, when: str
) -> None:
    path, before, place = archive(empty, tmp_path), tree(victim), empty.root / at

    def swap() -> None:
        if place.exists():
            place.rename(tmp_path / "aside")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(victim)

    def with_a_swap(*of: Any) -> Iterator[Any]:
        if when == "before the files":
            swap()
        yield from iterate_contents(*of)
        if when == "before the modes":
            swap()

    monkeypatch.setattr(restoring, "iterate_contents", with_a_swap)
    if (at, when) != ("work/phases", "before the modes"):  # no mode of that one is in the archive
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            restore_files(empty, path)
    assert tree(victim) == before


def test_what_stands_in_the_place_of_a_file_or_its_draft_is_replaced_not_written(
    empty: Settings, victim: Path, tmp_path: Path
) -> None:
    path, before = archive(empty, tmp_path), tree(victim)
    place = empty.root / FILE
    place.parent.mkdir(parents=True)
    draft = place.with_name(f".{hashlib.sha256(place.name.encode()).hexdigest()[:32]}.restoring")
    for make in (draft.hardlink_to, draft.symlink_to):
        make(victim / "response.md")
        restore_files(empty, path)
        assert place.read_text() == "ours"
        assert (victim / "response.md").read_text() == "theirs"
        place.unlink()
    assert tree(victim)[str(victim / "response.md")] == before[str(victim / "response.md")]

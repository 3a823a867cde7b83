"""Snapshots of a session's folder: each holds what the folder held, in few objects, and gc leaves what is needed."""

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.session_files import SessionFilesTooLarge
from tests.unit.runners.test_folder_trees import make_deep
from worker.files.folder_trees import remove_tree
from worker.files.safe_io import open_folder
from worker.plugins.object_store.folder import scan_folder
from worker.plugins.object_store.object_clearing import find_unneeded
from worker.plugins.object_store.objects import StoredObject
from worker.plugins.object_store.snapshots import (
    FolderState,
    FoundFile,
    Pointer,
    Snapshot,
    SnapshotManifest,
    StoredFile,
    build_snapshot,
    hash_content,
)

_FOLDERS = st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e"]), st.binary(max_size=64))


def state(files: dict[str, bytes]) -> FolderState:
    found = {path: FoundFile(hash_content(content), len(content), 0o644) for path, content in files.items()}
    return FolderState(found, {}, frozenset({"b"}))


@given(st.lists(_FOLDERS, min_size=1, max_size=24))
def test_each_snapshot_holds_its_folder_and_needs_few_objects(folders: list[dict[str, bytes]]) -> None:
    objects: dict[str, bytes] = {}
    base = Snapshot()
    for number, files in enumerate(folders):
        base, objects[f"s/{number}"] = build_snapshot(f"s/{number}", state(files), base, files.get, now=number, grace=3)
        pointer = base.pointer
        assert pointer is not None
        assert Pointer.from_text(str(pointer)) == pointer
        end = objects[pointer.name][pointer.at : pointer.at + pointer.length]
        assert hash_content(end) == pointer.digest
        read = SnapshotManifest.from_bytes(end)
        assert read == base.manifest
        stored = {
            path: zlib.decompress(objects[each.pack][each.at : each.at + each.length])
            for path, each in read.files.items()
        }
        assert stored == files
        assert len(read.packs) <= 9
        assert not read.retired.keys() & read.packs
        listed = [StoredObject(name, len(content), -10.0) for name, content in objects.items()]
        gone = {each.name for each in find_unneeded(listed, base, now=number, grace=3)}
        assert not gone & (read.packs | {pointer.name}), "what the current snapshot needs stays"


def test_gc_leaves_what_the_snapshot_before_needed_and_what_was_just_uploaded() -> None:
    kept = StoredFile("d", 1, 0o644, "s/pack", 0, 1)
    current = Snapshot(Pointer("s/now", 0, 1, "x"), SnapshotManifest({"a": kept}, {}, frozenset(), {"s/before": 90.0}))
    names = {"s/now": 0.0, "s/pack": 0.0, "s/before": 0.0, "s/uploading": 95.0, "s/late": 0.0}
    listed = [StoredObject(name, 1, at) for name, at in names.items()]
    assert [each.name for each in find_unneeded(listed, current, now=100.0, grace=20.0)] == ["s/late"]
    later = {each.name for each in find_unneeded(listed, current, now=200.0, grace=20.0)}
    assert later == {"s/late", "s/before", "s/uploading"}


@pytest.mark.parametrize("text", ["", "a 1 2", "a b 2 c", "a 1 2 c d"])
def test_a_damaged_pointer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"values to unpack|invalid literal"):
        Pointer.from_text(text)


@pytest.mark.parametrize("content", [b"", b"{}", zlib.compress(b"[]"), zlib.compress(b"{}"), zlib.compress(b"x")])
def test_a_damaged_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no manifest"):
        SnapshotManifest.from_bytes(content)


def test_a_folder_too_deep_for_a_snapshot_is_too_large(tmp_path: Path) -> None:
    make_deep(tmp_path / "top")
    with open_folder(tmp_path / "top") as top, pytest.raises(SessionFilesTooLarge, match="128 levels"):
        scan_folder(tmp_path / "top", top)
    remove_tree(tmp_path / "top")

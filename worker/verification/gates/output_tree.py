"""Lists and copies the files of a phase's output, which an agent wrote."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from worker.files.safe_io import open_folder, read_below
from worker.verification.gates.scratch import scratch_folder

MAX_FILES = 5_000
MAX_BYTES = 256 * 2**20
MAX_DEPTH = 40


class OutputTooLarge(Exception):
    """Raised when the output of a phase exceeds a size limit. The message names the limit."""


@dataclass(frozen=True, slots=True)
class OutputTree:
    """The files and links found below a folder, with paths relative to the folder.

    Attributes:
        files: sizes of the regular files that have no other hard link.
        leaving: symbolic links to targets outside the folder.
        others: everything else except folders.
    """

    directory: Path
    files: dict[str, int] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def scan_tree(directory: Path) -> OutputTree:
    """List everything below a folder, and return the resulting tree.

    Raises ``OutputTooLarge``, or ``OSError`` if the folder is missing or a link.
    """
    files: dict[str, int] = {}
    leaving: list[str] = []
    links: list[str] = []
    others: list[str] = []
    with open_folder(directory) as root:
        real = os.path.realpath(directory)
        for path, facts in _walk_entries(root, ""):
            if stat.S_ISLNK(facts.st_mode):
                target = os.path.realpath(os.path.join(real, path))  # noqa: PTH118 - a fifth of pathlib's time
                (links if target.startswith(f"{real}/") else leaving).append(path)
            elif stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
                files[path] = facts.st_size
            else:
                others.append(path)
            if len(files) + len(links) + len(leaving) + len(others) > MAX_FILES:
                raise OutputTooLarge(f"> {MAX_FILES} files")
    if sum(files.values()) > MAX_BYTES:
        raise OutputTooLarge(f"> {MAX_BYTES // 2**20} MiB")
    return OutputTree(
        directory, dict(sorted(files.items())), tuple(sorted(leaving)), tuple(sorted(links)), tuple(others)
    )


def _walk_entries(folder: int, prefix: str, depth: int = 0) -> Iterator[tuple[str, os.stat_result]]:
    if depth > MAX_DEPTH:
        raise OutputTooLarge(f"> {MAX_DEPTH} levels")
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                with open_folder(entry.name, folder) as below:
                    yield from _walk_entries(below, f"{path}/", depth + 1)
            else:
                yield path, entry.stat(follow_symlinks=False)


def read_tree_file(tree: OutputTree, path: str, limit: int) -> bytes:
    """Return the content of one file of the tree, without following links."""
    with open_folder(tree.directory) as folder:
        return read_below(path, folder, limit)


def copy_files(tree: OutputTree, target: Path, *, skip_closed: bool = False) -> None:
    """Copy the regular files of the tree into a folder, which is created if missing.

    Raises ``OSError``. ``skip_closed``: leave out files that this process may not read.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in tree.files:
        with contextlib.suppress(PermissionError) if skip_closed else contextlib.nullcontext():
            content = read_tree_file(tree, path, MAX_BYTES)
            copy = target / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)


@contextlib.contextmanager
def temporary_copy(tree: OutputTree, parent: Path | None = None, name: str = "files") -> Iterator[Path]:
    """Yield a temporary folder with a copy of the tree's regular files in its subfolder ``name``."""
    with scratch_folder(parent) as fresh:
        copy_files(tree, fresh / name)
        yield fresh

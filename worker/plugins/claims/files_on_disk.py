"""Finds out which files on disk the agent changed during a turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from worker.enforcement.rules import ObservedRun
from worker.enforcement.tool_call_log import OnDisk
from worker.files.folder_trees import walk_tree

#: The most files of an agent's folder that are checked.
MOST_FILES = 2_000
#: Folders that are not the agent's work: hook marks and leftovers of tools.
_NOT_ITS_WORK = frozenset({"marks", "node_modules", "__pycache__"})
#: Clock difference allowed between the file system and this machine, in seconds.
_SLACK = 2.0


def find_files(run: ObservedRun, named: Sequence[str]) -> dict[str, OnDisk]:
    """Return the states of the files in the run's folder, and of named files that the agent may write."""
    found: dict[str, OnDisk] = dict.fromkeys(_below(run.folder), "changed")
    roots = [path.resolve() for path in (run.folder, *run.writable)]
    for path in dict.fromkeys(named):
        states = [_state(base / path, roots, run.since) for base in (run.folder, run.root, *roots[1:])]
        for state in ("changed", "there", "missing"):
            if state in states:
                found.setdefault(path, state)
    return found


def _state(path: Path, roots: Sequence[Path], since: float) -> OnDisk | None:
    try:
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in roots):
            return None
        facts = real.stat()
    except (OSError, ValueError):
        return "missing"
    return "changed" if real.is_relative_to(roots[0]) or facts.st_mtime >= since - _SLACK else "there"


def _below(folder: Path) -> Iterator[str]:
    left = MOST_FILES
    for base, names, files in walk_tree(folder):
        names[:] = [name for name in sorted(names) if name not in _NOT_ITS_WORK and not name.startswith(".")]
        for name in sorted(files):
            path = Path(base) / name
            if left and path.is_file() and not path.is_symlink():
                left -= 1
                yield str(path.relative_to(folder))

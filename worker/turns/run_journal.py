"""The evidence about a run for rules that compare claims: what its runner reported, and the state of the disk.

It is collected only where such a rule judges the turn, on the machine where the agent worked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from worker.enforcement.claims.journal import Journal, OnDisk
from worker.enforcement.claims.statements import paths_claimed
from worker.enforcement.rules import Claims
from worker.runners.base import RunResult
from worker.runners.claude.command import writable_paths
from worker.turns import folders
from worker.turns.parts import EngineParts

#: Files of an agent's folder that are looked at.
MOST_FILES = 2_000
#: Not the agent's work in its folder: marks of hooks, and what tools leave for themselves.
_NOT_ITS_WORK = frozenset({"marks", "node_modules", "__pycache__"})
#: A file system may be so much behind this machine's clock, in seconds.
_SLACK = 2.0


async def collected(
    parts: EngineParts, turn: Turn, attempt: int, result: RunResult, before: AttemptRecord | None
) -> dict[str, Any]:
    """The journal of a run as it is stored, secrets masked; empty where there is none, or no rule asks for it.

    ``before`` is the record of the same attempt, of whose text the run went on.
    """
    if result.journal is None or not find_work(turn.request).in_session or not await _is_asked_for(parts, turn):
        return {}
    directory = folders.own_folder(parts.settings, turn, attempt)
    if result.adopted:
        directory = folders.delivery_beside(directory, turn, attempt, result.adopted)
    looked = await parts.threads.files(_looked_up, parts.settings, directory, result.text, result.journal, turn)
    journal = replace(result.journal, files=looked, whole=result.journal.whole and len(looked) < MOST_FILES)
    if before is not None:
        earlier = Journal.read(before.journal)
        if earlier is None:
            return {}
        journal = earlier + journal
    return journal.to_dict(parts.redact)


def _looked_up(settings: Settings, directory: Path, text: str, journal: Journal, turn: Turn) -> dict[str, OnDisk]:
    named = [*paths_claimed(text), *(call.what for call in journal.calls if call.kind == "write")]
    return files_of(settings, directory, named, turn.created_at)


async def _is_asked_for(parts: EngineParts, turn: Turn) -> bool:
    await parts.policies.load(turn)
    return Claims.kind in parts.policies.rules(turn)


def files_of(settings: Settings, directory: Path, named: Sequence[str], since: float) -> dict[str, OnDisk]:
    """The files of a delivery's folder, which began empty, and those that are named and that an agent may write.

    A path outside of what it may write is not looked up. ``since``: when the turn began, in seconds since the epoch.
    """
    found: dict[str, OnDisk] = dict.fromkeys(_below(directory), "changed")
    roots = [path.resolve() for path in (directory, *writable_paths(settings))]
    for path in dict.fromkeys(named):
        states = [_state(base / path, roots, since) for base in (directory, settings.root)]
        states += [_state(base / path, roots, since) for base in roots[1:]]
        for state in ("changed", "there", "missing"):
            if state in states:
                found.setdefault(path, state)
    return found


def _state(path: Path, roots: Sequence[Path], since: float) -> OnDisk | None:
    """The state of a file; None where it is in none of the folders."""
    try:
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in roots):
            return None
        facts = real.stat()
    except (OSError, ValueError):
        return "missing"
    return "changed" if real.is_relative_to(roots[0]) or facts.st_mtime >= since - _SLACK else "there"


def _below(folder: Path) -> Iterator[str]:
    """The regular files below a folder, ``MOST_FILES`` at most; links are not followed."""
    left = MOST_FILES
    for base, names, files in os.walk(folder):
        names[:] = [name for name in sorted(names) if name not in _NOT_ITS_WORK and not name.startswith(".")]
        for name in sorted(files):
            path = Path(base) / name
            if left and path.is_file() and not path.is_symlink():
                left -= 1
                yield str(path.relative_to(folder))

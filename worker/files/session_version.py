"""The last preparation of a session's folder by a worker process: the same version is prepared once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.contract.turn import Turn
from worker.files.safe_io import read
from worker.files.template import has_skills

#: Path, inode, size, times of modification and of change; zeros where there is no such file or folder.
Identity = tuple[str, int, int, int, int]


def identity(path: str, folder: int) -> Identity:
    """A file's or folder's identity. The time of its last change of any kind cannot be set by who writes it."""
    try:
        facts = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return path, 0, 0, 0, 0
    return path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """All that decides what CLAUDE.md says. While it is the same, the session's version is, and nothing is rendered.

    Attributes:
        template: the template's text; empty: there is to be no CLAUDE.md. tools: the agent has tools.
        root: the project the agent works in. skills: it has skills.
        session_id, created_at, original_request: as in the session's status.json.
        documents: those of ``context/``, by name in it, as they were before they were read.
    """

    template: str
    tools: bool
    root: Path
    skills: bool
    session_id: str
    created_at: str
    original_request: str
    documents: tuple[Identity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The result of a preparation.

    Attributes:
        turn_id: the turn. status: its status.json.
        rules: what CLAUDE.md says. digest: the SHA-256 of its content; empty for none.
        file: its identity. files: those of everything else that was written or read, by path in the session's folder.
    """

    turn_id: str
    status: Mapping[str, Any]
    rules: SessionRules
    digest: bytes
    file: Identity
    files: tuple[Identity, ...]

    def serves(self, turn: Turn, root: Path, template: str, *, tools: bool) -> bool:
        """Return whether it was prepared for this turn, and with these instructions: another model may have its own."""
        rules = self.rules
        same = (rules.template, rules.tools, rules.root) == (template, tools, root)
        return self.turn_id == turn.turn_id and same and rules.skills == has_skills(root)

    def holds(self, session: int) -> bool:
        """Return whether all of it still is as it was left."""
        return all(identity(file[0], session) == file for file in (self.file, *self.files))

    def says(self, rules: SessionRules, session: int) -> bool:
        """Return whether CLAUDE.md says this already. Compares the content: another process may have written it."""
        if self.rules != rules:
            return False
        try:
            return hashlib.sha256(read(self.file[0], session, self.file[2])).digest() == self.digest
        except FileNotFoundError:
            return not self.digest
        except OSError:  # a link, a folder, a file that grew
            return False

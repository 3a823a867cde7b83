"""Remembers how a process last prepared a session's folder, to skip unchanged preparations."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.contract.turn import Turn
from worker.files.safe_io import read_file
from worker.files.template import Identity, SessionRules


def identify_file(path: str, folder: int) -> Identity:
    """Return the path, inode, size and times of a file or folder, which together reveal any change."""
    try:
        facts = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return path, 0, 0, 0, 0
    return path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSession:
    """Remembers how a session's folder was prepared for a turn, to avoid preparing an unchanged folder again.

    ``digest`` is the SHA-256 of CLAUDE.md and ``file`` its identity; ``files`` are the identities of all other files.
    """

    turn_id: str
    status: Mapping[str, Any]
    rules: SessionRules
    digest: bytes
    file: Identity
    files: tuple[Identity, ...]

    def matches_turn(self, turn: Turn, root: Path, template: str, skills: str, *, tools: bool) -> bool:
        """Return True if the folder was prepared for this turn with the same template, skills and tools."""
        rules = self.rules
        same = (rules.template, rules.tools, rules.root, rules.skills) == (template, tools, root, skills)
        return self.turn_id == turn.turn_id and same

    def is_unchanged(self, session: int) -> bool:
        """Return True if CLAUDE.md and all other files are as they were prepared."""
        return all(identify_file(file[0], session) == file for file in (self.file, *self.files))

    def has_rules(self, rules: SessionRules, session: int) -> bool:
        """Return True if CLAUDE.md was written from these values and is unchanged."""
        if self.rules != rules:
            return False
        try:
            return hashlib.sha256(read_file(self.file[0], session, self.file[2])).digest() == self.digest
        except FileNotFoundError:
            return not self.digest
        except OSError:
            return False

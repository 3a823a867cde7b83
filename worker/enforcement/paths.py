"""Paths that an ADR names, resolved inside a root and never outside it. Looks at the file system, reads no file."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from pathlib import Path

MAX_PATH_CHARS, MAX_NAME_BYTES = 1024, 255
#: Directories are searched for near names up to this many entries each.
_MAX_ENTRIES = 500

_ELSEWHERE = re.compile(r"[/\\~]|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]{1,20}:/|file:", re.IGNORECASE)
_PATTERN = re.compile(r"[*?]|\[[^\]]*\]|\{[^}]*,[^}]*\}")
_SUFFIX = re.compile(r"(?::\d[\d:,-]*|#L\d[\dL-]*|\s+\([^()]*\)|\s+(?:#|//|->|–|—).*)$")


class Found(Enum):
    """What a path leads to."""

    FILE = "file"
    MISSING = "missing"
    OTHER = "other"  # a directory, a pipe, a device
    OUTSIDE = "outside"  # whether anything is there is not looked at
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Root:
    """The directory that paths are relative to; ``real`` is the same with all symbolic links resolved."""

    real: str
    _entries: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def at(cls, root: Path) -> Root:
        """The root at a path, which need not exist."""
        return cls(os.path.realpath(root))

    def find(self, path: str) -> Found:
        """What a path leads to. What lies outside the root is not touched, so that its existence cannot be asked."""
        if self.unusable(path):
            return Found.UNUSABLE
        if self.outside(path):
            return Found.OUTSIDE
        try:
            real = os.path.realpath(os.path.join(self.real, path))  # noqa: PTH118 - a fifth of pathlib's time
            if real != self.real and not real.startswith(self.real.rstrip("/") + "/"):
                return Found.OUTSIDE
            mode = os.stat(real, follow_symlinks=False).st_mode  # noqa: PTH116
        except (OSError, ValueError):  # missing, a loop of links, no permission to look
            return Found.MISSING
        return Found.FILE if stat.S_ISREG(mode) else Found.OTHER

    @staticmethod
    def unusable(path: str) -> bool:
        """True for what can be no single file: empty, too long, a pattern, control characters."""
        if not path.strip() or len(path) > MAX_PATH_CHARS or not path.isprintable() or _PATTERN.search(path):
            return True
        try:
            return any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/"))
        except UnicodeEncodeError:
            return True

    @staticmethod
    def outside(path: str) -> bool:
        """True when a path by its text alone leaves the root."""
        plain = path.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/").replace("\\", "/")
        if _ELSEWHERE.match(path.strip()) or plain.startswith("/"):
            return True
        return os.path.normpath(plain).split("/", 1)[0] == ".."

    def suggest(self, path: str) -> str:
        """A file with a near name, or empty: each part is taken as it is, or as its likeliest neighbour."""
        here = self.real
        chosen: list[str] = []
        for part in (part for part in path.split("/") if part not in ("", ".")):
            names = self._names(here)
            near = [part] if part in names else get_close_matches(part, names, n=1, cutoff=0.6)
            if not near:
                return ""
            chosen.append(near[0])
            here = f"{here}/{near[0]}"
        suggestion = "/".join(chosen)
        return suggestion if suggestion != path and self.find(suggestion) is Found.FILE else ""

    def _names(self, directory: str) -> list[str]:
        """The entries of a directory, some hundred at most, looked up once; empty when it cannot be read."""
        if directory not in self._entries:
            try:
                with os.scandir(directory) as entries:
                    self._entries[directory] = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
            except OSError:
                self._entries[directory] = []
        return self._entries[directory]


def bare(path: str) -> str:
    """The path without a line number or remark behind it: ``a.py:12``, ``a.py#L3``, ``a.py (Zeile 3)``."""
    return _SUFFIX.sub("", path) if len(path) <= MAX_PATH_CHARS else path

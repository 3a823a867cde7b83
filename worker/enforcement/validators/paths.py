"""Paths that an ADR names, resolved below a root. Looks at the file system but reads no file."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from pathlib import Path

MAX_PATH_CHARS, MAX_NAME_BYTES = 1024, 255
_MAX_ENTRIES = 500
#: Most names compared for suggestions, over all paths of a root.
MAX_COMPARED = 4_000

_ELSEWHERE = re.compile(r"[/\\~]|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]{1,20}:/|file:", re.IGNORECASE)
_PATTERN = re.compile(r"[*?]|\[[^\]]*\]|\{[^}]*,[^}]*\}")
#: A bracketed word as a path component, as web frameworks name routes (``[id]``, ``[...all].ts``).
_ROUTE = re.compile(r"(?:^|(?<=/))\[{1,2}(?:\.\.\.)?[A-Za-z_]\w+\]{1,2}(?=$|[/.])")
_SUFFIX = re.compile(r"(?::\d[\d:,-]*|#L\d[\dL-]*|\s+\([^()]*\)|\s+(?:#|//|->|–|—).*)$")


class PathTarget(Enum):
    """The kinds of things that a path can point to, such as a file or a place outside the root."""

    FILE = "file"
    MISSING = "missing"
    OTHER = "other"  # a directory, a pipe, a device
    OUTSIDE = "outside"  # never looked at
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Root:
    """The directory below which the paths in an answer are looked up. ``real`` is its path without symbolic links."""

    real: str
    _entries: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)
    _compared: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    @classmethod
    def from_path(cls, root: Path) -> Root:
        return cls(os.path.realpath(root))

    def find(self, path: str) -> PathTarget:
        """Return what kind of thing a path points to, without accessing anything outside the root."""
        if _is_impossible(path):
            return PathTarget.UNUSABLE
        if self.is_outside(path):
            return PathTarget.OUTSIDE
        try:
            real = os.path.realpath(os.path.join(self.real, path))  # noqa: PTH118 - a fifth of pathlib's time
            if real != self.real and not real.startswith(self.real.rstrip("/") + "/"):
                return PathTarget.OUTSIDE
            mode = os.stat(real, follow_symlinks=False).st_mode  # noqa: PTH116
        except (OSError, ValueError):  # missing, a loop of links, or no permission
            doubtful = not path.isprintable() or _PATTERN.search(_ROUTE.sub("", path))
            return PathTarget.UNUSABLE if doubtful else PathTarget.MISSING
        return PathTarget.FILE if stat.S_ISREG(mode) else PathTarget.OTHER

    @staticmethod
    def is_outside(path: str) -> bool:
        """Return True if a path leads out of the root, judging only by its text."""
        plain = path.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/").replace("\\", "/")
        if _ELSEWHERE.match(path.strip()) or plain.startswith("/"):
            return True
        return os.path.normpath(plain).split("/", 1)[0] == ".."

    def suggest_path(self, path: str) -> str:
        """Return the path of the existing file that most resembles ``path``, or an empty string if none is similar."""
        here = self.real
        chosen: list[str] = []
        for part in (part for part in path.split("/") if part not in ("", ".")):
            names = self._list_names(here)
            near = [part] if part in names else self._nearest_names(part, names)
            if not near:
                return ""
            chosen.append(near[0])
            here = f"{here}/{near[0]}"
        suggestion = "/".join(chosen)
        return suggestion if suggestion != path and self.find(suggestion) is PathTarget.FILE else ""

    def _nearest_names(self, name: str, names: list[str]) -> list[str]:
        self._compared[0] += len(names)
        return get_close_matches(name, names, n=1, cutoff=0.6) if self._compared[0] <= MAX_COMPARED else []

    def _list_names(self, directory: str) -> list[str]:
        if directory not in self._entries:
            try:
                with os.scandir(directory) as entries:
                    self._entries[directory] = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
            except OSError:
                self._entries[directory] = []
        return self._entries[directory]


def strip_suffix(path: str) -> str:
    """Return a path without the line number or remark after it, as in ``a.py:12`` or ``a.py (line 3)``."""
    return _SUFFIX.sub("", path) if len(path) <= MAX_PATH_CHARS else path


def _is_impossible(path: str) -> bool:
    if not path.strip() or len(path) > MAX_PATH_CHARS:
        return True
    if not path.isprintable() and any(unicodedata.category(char) == "Cc" for char in path):
        return True
    try:
        return any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/"))
    except UnicodeEncodeError:
        return True

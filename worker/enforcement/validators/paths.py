"""Paths that an ADR names, resolved inside a root and never outside it. Looks at the file system, reads no file."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from api_client.contract.issues import ValidationIssue
from worker.enforcement.documents.document import MAX_ADRS, Adr, parse, texts_of
from worker.enforcement.documents.frontmatter import HeaderTooComplex, Node, move_entries
from worker.enforcement.documents.part import FILES, YAML_HEADER, field_part
from worker.enforcement.validators.codes import DEFAULT_LOCALE, ResponseValidator, issue, words

MAX_PATH_CHARS, MAX_NAME_BYTES = 1024, 255
#: Directories are searched for near names up to this many entries each.
_MAX_ENTRIES = 500
#: Names that are compared to suggest near ones, over all paths of a root: beyond it no path gets a suggestion.
MAX_COMPARED = 4_000

_ELSEWHERE = re.compile(r"[/\\~]|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]{1,20}:/|file:", re.IGNORECASE)
_PATTERN = re.compile(r"[*?]|\[[^\]]*\]|\{[^}]*,[^}]*\}")
#: A word in brackets as a part's name or its beginning: how web frameworks name routes (``[id]``, ``[...all].ts``).
_ROUTE = re.compile(r"(?:^|(?<=/))\[{1,2}(?:\.\.\.)?[A-Za-z_]\w+\]{1,2}(?=$|[/.])")
_SUFFIX = re.compile(r"(?::\d[\d:,-]*|#L\d[\dL-]*|\s+\([^()]*\)|\s+(?:#|//|->|–|—).*)$")


class PathTarget(Enum):
    """A path's target."""

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
    _compared: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    @classmethod
    def at(cls, root: Path) -> Root:
        """The root at a path, which need not exist."""
        return cls(os.path.realpath(root))

    def find(self, path: str) -> PathTarget:
        """Return what a path leads to. What lies outside the root is not touched, so its existence cannot be asked.

        A name that looks like a pattern or has odd characters is what it is when it exists, and unusable when not.
        """
        if _impossible(path):
            return PathTarget.UNUSABLE
        if self.outside(path):
            return PathTarget.OUTSIDE
        try:
            real = os.path.realpath(os.path.join(self.real, path))  # noqa: PTH118 - a fifth of pathlib's time
            if real != self.real and not real.startswith(self.real.rstrip("/") + "/"):
                return PathTarget.OUTSIDE
            mode = os.stat(real, follow_symlinks=False).st_mode  # noqa: PTH116
        except (OSError, ValueError):  # missing, a loop of links, no permission to look
            return PathTarget.UNUSABLE if _doubtful(path) else PathTarget.MISSING
        return PathTarget.FILE if stat.S_ISREG(mode) else PathTarget.OTHER

    @staticmethod
    def outside(path: str) -> bool:
        """True when a path by its text alone leaves the root."""
        plain = path.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/").replace("\\", "/")
        if _ELSEWHERE.match(path.strip()) or plain.startswith("/"):
            return True
        return os.path.normpath(plain).split("/", 1)[0] == ".."

    def suggest(self, path: str) -> str:
        """A file with a near name, or empty: each part is taken as it is, or as its likeliest neighbour.

        Comparing names is slow, so a root compares ``MAX_COMPARED`` of them at most: the first paths get a suggestion.
        """
        here = self.real
        chosen: list[str] = []
        for part in (part for part in path.split("/") if part not in ("", ".")):
            names = self._names(here)
            near = [part] if part in names else self._nearest(part, names)
            if not near:
                return ""
            chosen.append(near[0])
            here = f"{here}/{near[0]}"
        suggestion = "/".join(chosen)
        return suggestion if suggestion != path and self.find(suggestion) is PathTarget.FILE else ""

    def _nearest(self, name: str, names: list[str]) -> list[str]:
        self._compared[0] += len(names)
        return get_close_matches(name, names, n=1, cutoff=0.6) if self._compared[0] <= MAX_COMPARED else []

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


def _impossible(path: str) -> bool:
    """True for what no file can be called here: empty, too long, with control characters."""
    if not path.strip() or len(path) > MAX_PATH_CHARS:
        return True
    if not path.isprintable() and any(unicodedata.category(char) == "Cc" for char in path):
        return True
    try:
        return any(len(part.encode()) > MAX_NAME_BYTES for part in path.split("/"))
    except UnicodeEncodeError:
        return True


def _doubtful(path: str) -> bool:
    """True for what is hardly meant as a file that does not exist: a pattern, or characters that nobody sees."""
    return not path.isprintable() or bool(_PATTERN.search(_ROUTE.sub("", path)))


# The files an ADR wants to modify exist (ADR-038 section 4). What does not exist belongs into ``files.create``.

#: What it means that a file is missing, by the list that names it; ``create`` wants it to be missing.
_MISSING = {"modify": "FILE_NOT_FOUND", "docs": "DOC_NOT_FOUND", "delete": "DELETE_NOT_FOUND"}
_LISTS = ("create", *_MISSING)
#: The one place outside the root where an ADR may create files: the agent's hooks (ADR-036, phase 1).
ALLOWED_OUTSIDE = ("~/.claude/hooks/",)

#: Makes an issue of a code, a node of the header, and the values of the code's words.
Report = Callable[..., ValidationIssue]


def may_look_at_files(texts: Iterable[str]) -> bool:
    """Return whether an answer made of these texts could make the validator look at the file system, which may be slow.

    It does so only for an ADR whose header has ``files``; the parts of an answer may come from several texts.
    """
    adr = files = False
    for text in texts:
        adr = adr or "adr_id" in text or "ADR-" in text
        files = files or "files" in text
    return adr and files


class FileExistenceValidator(ResponseValidator):
    """Judges ``files`` in the header of every ADR; paths are relative to the root and never followed out of it."""

    name = "file_existence"
    mends_files: ClassVar[bool] = True

    def __init__(self, helix_root: Path, locale: str = DEFAULT_LOCALE) -> None:
        self.helix_root = Path(helix_root)
        self.locale = locale

    def bounded_on(self, texts: Iterable[str]) -> bool:
        """True where no text can make it look at the file system."""
        return not may_look_at_files(texts)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """The issues of every ADR's ``files``, in the order of the texts."""
        locale = str(context.get("locale", self.locale))
        issues: list[ValidationIssue] = []
        root: Root | None = None
        for text in texts_of(response, context):
            adrs = [adr for adr in text.adrs if adr.header]
            if len(adrs) > MAX_ADRS:
                issues.append(issue("TOO_MANY_ADRS", locale, file=text.file, count=MAX_ADRS))
                continue
            for adr in adrs:
                root = root or Root.at(self.helix_root)  # looks at the file system: not for an answer without an ADR
                part = YAML_HEADER if adr.error is not None else field_part(FILES)
                part = part if len(adrs) == 1 and adr.offset >= 0 else ""
                issues += _judge(root, adr, partial(_found, adr, locale, text.file, part))
        return issues

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Move what ``files.modify`` names and does not exist to ``files.create``; no other byte changes.

        Returns:
            The repaired answer; None when nothing is missing, or a header cannot be edited surely.
        """
        repaired = response
        for adr in reversed(parse(response).adrs):
            missing = set(self._missing(adr))
            if missing and adr.offset >= 0 and adr.header:
                start, end = adr.char_of(adr.header[0]), adr.char_of(adr.header[1])
                moved = move_entries(repaired[start:end], missing, source="modify", target="create")
                if moved is not None:
                    repaired = repaired[:start] + moved + repaired[end:]
        return None if repaired == response else repaired

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Which paths were moved."""
        locale = str(context.get("locale", self.locale))
        german = "{}: von files.modify nach files.create verschoben"
        english = "{}: moved from files.modify to files.create"
        left = {path for adr in parse(after).adrs for path in self._missing(adr)}
        gone = (path for adr in parse(before).adrs for path in self._missing(adr) if path not in left)
        return [words(locale, german, english).format(path) for path in dict.fromkeys(gone)]

    def _missing(self, adr: Adr) -> Iterator[str]:
        """The paths of ``files.modify`` that lead to nothing, as written."""
        files = adr.root.get("files") if adr.root is not None else None
        modify = files.get("modify") if files is not None else None
        if modify is None:
            return
        root = Root.at(self.helix_root)
        for entry in modify.items:
            if entry.kind == "scalar" and not entry.null and _look(root, entry.value) is PathTarget.MISSING:
                yield entry.value


def _found(adr: Adr, locale: str, file: str, part: str, code: str, node: Node, **values: object) -> ValidationIssue:
    return issue(code, locale, file=file, line=adr.header_line(node.line), part=part, **values)


def _look(root: Root, path: str) -> PathTarget:
    """Return what a path leads to, also when a line number or remark is behind it."""
    found = root.find(path)
    return root.find(bare(path)) if found is PathTarget.MISSING and bare(path) != path else found


def _judge(root: Root, adr: Adr, found: Report) -> Iterator[ValidationIssue]:
    """The issues of the files that one ADR names."""
    if adr.error is not None:  # nothing is known about its files
        code = "YAML_TOO_COMPLEX" if isinstance(adr.error, HeaderTooComplex) else "INVALID_YAML"
        yield found(code, Node("scalar", 0, adr.error.line, 0), problem=adr.error)
        return
    files = adr.root.get("files") if adr.root is not None else None
    if files is None or files.null:
        return
    if files.kind != "mapping":
        yield found("INVALID_FILES", files, where="files")
        return
    for key, value in files.pairs:
        if key.value not in _LISTS or value.null:
            continue
        if value.kind != "sequence":
            yield found("INVALID_FILES", value, where=f"files.{key.value}")
        for entry in value.items:
            yield from _judge_entry(root, key.value, entry, found)


def _judge_entry(root: Root, key: str, entry: Node, found: Report) -> Iterator[ValidationIssue]:
    where, path = f"files.{key}", entry.value
    if entry.kind != "scalar" or entry.null:
        yield found("INVALID_FILES", entry, where=where)
        return
    if key == "create" and path.startswith(ALLOWED_OUTSIDE) and ".." not in path:
        return
    kind = _look(root, path)
    if kind is PathTarget.OUTSIDE:
        yield found("OUTSIDE_ROOT", entry, where=where, path=path)
    elif kind is PathTarget.UNUSABLE:
        yield found("INVALID_PATH", entry, where=where, path=path)
    elif key == "create":
        if kind is not PathTarget.MISSING:
            yield found("FILE_ALREADY_EXISTS", entry, path=path)
    elif kind is PathTarget.MISSING:
        near = root.suggest(bare(path))
        yield found(_MISSING[key], entry, path=path, suggestion=f" ({near}?)" if near else "")
    elif kind is PathTarget.OTHER:
        yield found("NOT_A_FILE", entry, where=where, path=path)
    elif root.find(path) is not PathTarget.FILE:
        yield found("PATH_WITH_SUFFIX", entry, where=where, path=path, bare=bare(path))

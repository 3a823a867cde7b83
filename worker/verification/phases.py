"""Reading phases.yaml: foreign text, so bounded in size, depth and values. Every error names file and line."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api_client.contract.phases.phase import Phase, read_phases
from api_client.contract.phases.phase_checks import PhaseError, Problem, Where
from api_client.contract.phases.phase_place import kind_at
from worker.enforcement.documents.frontmatter import MAX_CHARS, MAX_DEPTH, MAX_NODES, HeaderError, Node, read_header

NAME = "phases.yaml"

#: Plain scalars as YAML 1.2 reads them: ``yes`` and ``036`` stay texts.
_WORDS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,15})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:0|[1-9]\d{0,15})?\.\d{1,15}|[-+]?[1-9]\d{0,15}\.", re.ASCII)


class PhasesFileError(PhaseError):
    """A phases.yaml that cannot be carried out: one line for every problem, ``FILE:LINE: the faults``."""

    def __init__(self, source: str, problems: Sequence[Problem], lines: Sequence[int]) -> None:
        super().__init__(problems)
        self.source = source
        self.lines = tuple(lines)
        self.args = ("\n".join(self.described),)

    @property
    def described(self) -> tuple[str, ...]:
        """The problems as lines."""
        places = (f"{self.source}:{line}" if line else self.source for line in self.lines)
        return tuple(f"{place}: {problem}" for place, problem in zip(places, self.problems, strict=True))


def load_phases(path: Path) -> tuple[Phase, ...]:
    """The phases of a file, or of the phases.yaml in a folder.

    Raises:
        PhasesFileError: there is no such file, it cannot be read, or something in it is wrong; also when an input file
            is a link, a pipe or a folder.
    """
    file = phases_file(path)
    try:
        content = _content(file)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        hint = f"no such file; write one, or name the folder that holds a {NAME}"
        raise PhasesFileError(str(file), [Problem((), hint)], [0]) from None
    except OSError as error:
        why = "it is a link; name the file it leads to" if error.errno == errno.ELOOP else error.strerror
        raise PhasesFileError(str(file), [Problem((), f"cannot be read: {why}")], [0]) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise PhasesFileError(str(file), [Problem((), "is not UTF-8")], [line]) from error
    return parse_phases(text, str(file), folder=file.resolve().parent)


def _content(file: Path) -> bytes:
    """The beginning of a plain file: opening a pipe would wait for a writer, and a link leads to another folder."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        return source.read(4 * MAX_CHARS + 1)


def phases_file(path: Path) -> Path:
    """The file that a path means: itself, or the phases.yaml in the folder it is."""
    return path / NAME if path.is_dir() else path


def parse_phases(text: str, source: str = NAME, folder: Path | None = None) -> tuple[Phase, ...]:
    """The phases of a text.

    Args:
        text: YAML.
        source: names the text in errors.
        folder: where input files are; what lies there already must be plain files. None: that is not looked at.

    Raises:
        PhasesFileError: something is wrong; names every problem.
    """
    try:
        root = read_header(text)
        if root is None:
            raise HeaderError("holds no phases")
        values = _Values()
        data = values.of(root, ())
    except HeaderError as error:
        raise PhasesFileError(source, [Problem((), f"is not usable YAML: {error}")], [error.line + 1]) from None
    try:
        phases = read_phases(data)
        if found := _inputs(phases, folder, prefix=("phases",) if isinstance(data, dict) else ()):
            raise PhaseError(found)
    except PhaseError as error:
        problems = sorted([*values.problems, *error.problems], key=lambda problem: values.line_of(problem.where))
        raise PhasesFileError(source, problems, [values.line_of(each.where) for each in problems]) from None
    if values.problems:
        lines = [values.line_of(each.where) for each in values.problems]
        raise PhasesFileError(source, values.problems, lines)
    return phases


def _inputs(phases: Sequence[Phase], folder: Path | None, *, prefix: Where) -> list[Problem]:
    """Return what is in place of an input file and can be none."""
    return [
        Problem((*prefix, number, "input_files", place), f"{path!r} is {kind}, not a plain file")
        for number, phase in enumerate(phases)
        for place, path in enumerate(phase.input_files)
        if folder and (kind := kind_at(folder, path)) not in {"", "a plain file"}
    ]


class _Values:
    """Turns nodes into plain values, and remembers where each stood. Aliases are bounded by what they expand to."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._lines: dict[Where, int] = {}
        self._left = MAX_NODES

    def of(self, node: Node, where: Where) -> Any:
        """A node's value.

        Raises:
            HeaderError: aliases make it larger or deeper than a file may be.
        """
        self._left -= 1
        if self._left < 0 or len(where) > MAX_DEPTH:
            raise HeaderError(f"> {MAX_NODES} values or > {MAX_DEPTH} levels, aliases followed", node.line)
        self._lines[where] = node.line + 1
        if node.kind == "sequence":
            return [self.of(item, (*where, number)) for number, item in enumerate(node.items)]
        if node.kind == "mapping":
            return self._mapping(node, where)
        return _scalar(node)

    def _mapping(self, node: Node, where: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.pairs:
            if key.kind != "scalar":
                raise HeaderError("a key must be a text", key.line)
            here = (*where, key.value)
            if key.value in found:
                self.problems.append(Problem(here, "is there twice"))
            found[key.value] = self.of(value, here)
            self._lines[here] = key.line + 1
        return found

    def line_of(self, where: Where) -> int:
        """The line of a value, from 1; of what holds it, where the value is missing."""
        while where and where not in self._lines:
            where = where[:-1]
        return self._lines.get(where, 1)


def _scalar(node: Node) -> Any:
    if not node.plain:
        return node.value
    if node.null:
        return None
    if node.value in _WORDS:
        return _WORDS[node.value]
    if _INTEGER.fullmatch(node.value):
        return int(node.value)
    return float(node.value) if _FLOAT.fullmatch(node.value) else node.value

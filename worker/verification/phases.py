"""Reading phases.yaml: foreign text, so bounded in size, depth and values. Every error names file and line."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api_client.contract.declared import Findings, Invalid, Problem, resolved
from api_client.contract.phase import Phase, checked_phases
from api_client.contract.phase_checks import PhaseError
from api_client.contract.phase_place import kind_at
from worker.enforcement.documents.frontmatter import MAX_CHARS
from worker.enforcement.documents.written import read_yaml

NAME = "phases.yaml"


class PhasesFileError(PhaseError):
    """A phases.yaml that cannot be carried out: for each problem ``FILE:LINE:COLUMN: what is wrong``."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.source = source
        self.args = ("\n".join(self.described),)

    @property
    def described(self) -> tuple[str, ...]:
        """The problems as lines."""
        return tuple(f"{self.source}:{'' if each.line else ' '}{each}" for each in self.problems)


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
        raise PhasesFileError(str(file), [Problem((), hint)]) from None
    except OSError as error:
        why = "it is a link; name the file it leads to" if error.errno == errno.ELOOP else error.strerror
        raise PhasesFileError(str(file), [Problem((), f"cannot be read: {why}")]) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise PhasesFileError(str(file), [Problem((), "is not UTF-8", line=line, column=1)]) from error
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

    def checked(value: Any) -> tuple[Phase, ...]:
        data = resolved(value)
        phases, found = checked_phases(data), Findings()
        prefix = ("phases",) if isinstance(data, dict) else ()
        for number, phase in enumerate(phases):
            for place, path in enumerate(phase.input_files):
                if folder and (kind := kind_at(folder, path)) not in {"", "a plain file"}:
                    found.wrong(f"{path!r} is {kind}, not a plain file", *prefix, number, "input_files", place)
        found.end()
        return phases

    try:
        phases: tuple[Phase, ...] = read_yaml(text, checked, "is not usable YAML: holds no phases")[0]
    except Invalid as error:
        raise PhasesFileError(source, error.problems) from None
    return phases

"""Reads phases.yaml with limits on size, depth and values. Every error names file and line."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api_client.contract.phase import Phase, read_phases_kind
from api_client.contract.phase_checks import PhaseError
from api_client.contract.phase_folders import file_kind
from api_client.contract.value_kinds import Findings, InvalidValue, Problem, resolve_scalars
from worker.enforcement.documents.frontmatter import MAX_CHARS
from worker.enforcement.documents.yaml_reader import read_yaml

NAME = "phases.yaml"


class PhasesFileError(PhaseError):
    """Raised if a phases.yaml is missing or invalid. The message lists each problem with file, line and column."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.source = source
        self.args = ("\n".join(self.described),)

    @property
    def described(self) -> tuple[str, ...]:
        """Return each problem as a line of text that starts with file, line and column."""
        return tuple(f"{self.source}:{'' if each.line else ' '}{each}" for each in self.problems)


def load_phases(path: Path) -> tuple[Phase, ...]:
    """Return the phases that a phases.yaml defines, given the path of the file or of its folder.

    Raises ``PhasesFileError``, also for an input file that is not a plain file.
    """
    file = resolve_phases_file(path)
    try:
        content = _read_plain_file(file)
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


def _read_plain_file(file: Path) -> bytes:
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        return source.read(4 * MAX_CHARS + 1)


def resolve_phases_file(path: Path) -> Path:
    """Return the path of a phases.yaml, given the path of the file or of its folder."""
    return path / NAME if path.is_dir() else path


def parse_phases(text: str, source: str = NAME, folder: Path | None = None) -> tuple[Phase, ...]:
    """Return the phases that a YAML text defines. Raises ``PhasesFileError`` with every problem.

    ``folder`` is the folder of the input files, which must be plain files if they exist; None skips this check.
    """

    def check_phases(value: Any) -> tuple[Phase, ...]:
        data = resolve_scalars(value)
        phases, found = read_phases_kind(data), Findings()
        prefix = ("phases",) if isinstance(data, dict) else ()
        for number, phase in enumerate(phases):
            for place, path in enumerate(phase.input_files):
                if folder and (kind := file_kind(folder, path)) not in {"", "a plain file"}:
                    found.add_problem(f"{path!r} is {kind}, not a plain file", *prefix, number, "input_files", place)
        found.raise_problems()
        return phases

    try:
        phases: tuple[Phase, ...] = read_yaml(text, check_phases, "is not usable YAML: holds no phases")[0]
    except InvalidValue as error:
        raise PhasesFileError(source, error.problems) from None
    return phases

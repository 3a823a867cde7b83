"""The phases of a phases.yaml, as relay and worker see them (ADR-025)."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from api_client.contract.declared import (
    Findings,
    Invalid,
    Kind,
    Problem,
    each,
    nearest,
    noun_of,
    record,
    unknown,
    whole,
    yes,
)
from api_client.contract.issues import HelixError
from api_client.contract.keys import session_digest
from api_client.contract.policy import MAX_ATTEMPTS
from api_client.contract.turn import LOCAL_OWNER, TurnRequest

# Kinds of the keys of phases.yaml: each problem is one sentence. Looks at values only.

MAX_PATHS, MAX_GATES = 200, 20
#: Longest text of a phase, and largest ``config`` as JSON, in characters.
MAX_TEXT, MAX_CONFIG = 20_000, 16_384
#: Longest path in characters, and longest name in it in bytes: file systems take no more.
MAX_PATH, MAX_NAME_BYTES = 1024, 255
#: What the Claude CLI never lets an agent write, in lower case (docs/claude-cli.md): a phase that waits for it never
#: ends well.
CLOSED_TO_AGENTS = frozenset(
    {".claude", ".claude.json", ".git", ".gitconfig", ".gitmodules", ".husky", ".idea", ".mcp.json", ".vscode"}
    | {".bash_profile", ".bashrc", ".profile", ".ripgreprc", ".zprofile", ".zshrc"}
)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


class PhaseError(HelixError):
    """Phases that cannot be carried out; ``problems`` has everything that is wrong with them."""

    code = "invalid_phases"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def spelled(value: object) -> str:
    """An id as text: YAML reads ``id: 1`` as a number."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if number or isinstance(value, str) else ""


def gate_entries(value: Any) -> list[Any]:
    """A gate may be written as its name, a mapping, or a list of these."""
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [{"type": entry} if isinstance(entry, str) else entry for entry in entries]


def _id(value: object) -> str:
    if not _ID.fullmatch(spelled(value)):
        raise ValueError("must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit")
    return spelled(value)


def _type(value: object) -> str:
    if not isinstance(value, str) or not _TYPE.fullmatch(value):
        raise ValueError("must be a small word such as development, review or documentation")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {noun_of(value)}")
    if not value.strip():
        raise ValueError("must not be empty")
    if len(value) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters")
    return value


def _config(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"must be a mapping with texts as keys, not {noun_of(value)}")
    try:
        length = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("must hold only texts, numbers, true, false, null, lists and mappings") from None
    found = Findings()
    if length > MAX_CONFIG:
        found.wrong(f"must have at most {MAX_CONFIG} characters as JSON")
    if not isinstance(value.get("model", ""), str):
        found.wrong("must be the name of a model of HELIX_MODELS", "model")
    found.end()
    return dict(value)


def _seconds(value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < float(value) <= 86_400 or not math.isfinite(float(value)):  # type: ignore[arg-type]
        raise ValueError("must be a number of seconds, more than 0 and at most 86400")
    return float(value)  # type: ignore[arg-type]


def path_problem(value: object) -> str:
    """Return why this is not a path below a folder; empty when it is one. Looks at the text only."""
    if not isinstance(value, str):
        return f"must be a path, not {noun_of(value)}"
    if not value.strip() or len(value) > MAX_PATH or not value.isprintable():
        return f"must be a path of 1 to {MAX_PATH} printable characters"
    path = PurePosixPath(value)
    if path.is_absolute() or value.startswith("~") or re.match(r"[A-Za-z]:[\\/]", value):
        return f"must be a relative path, not {value!r}"
    if ".." in path.parts or "\\" in value:
        return f"must not leave its folder, as {value!r} does" if ".." in path.parts else "must use / between folders"
    if not path.parts or value.endswith("/"):
        return f"must name a file, not the folder {value!r}"
    if too_long := [part for part in path.parts if len(part.encode()) > MAX_NAME_BYTES]:
        return f"no file can have a name of {len(too_long[0].encode())} bytes; at most {MAX_NAME_BYTES}"
    return ""


def folder_problem(value: str) -> str:
    """Give why phases cannot have this folder, relative to HELIX_ROOT; empty when they can. Looks at the text only."""
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts or "\\" in value or not value.isprintable():
        return f"must be relative to HELIX_ROOT, not {value[:80]!r}"
    if len(value) > MAX_PATH or any(len(part.encode()) > MAX_NAME_BYTES for part in path.parts):
        return f"no folder can have this name: more than {MAX_PATH} characters, or {MAX_NAME_BYTES} bytes between two /"
    if any(part.startswith(".") for part in path.parts):
        return f"hidden folders are not for phases: {value[:80]!r}"
    if path.parts[:1] == ("projects",):
        return "projects/ holds the sessions' own folders and is not for phases"
    return ""


def _path(value: object) -> str:
    if problem := path_problem(value):
        raise ValueError(problem)
    return str(value)


def _output(value: object) -> str:
    found = Findings()
    path = found.read(_path, value) or (value if isinstance(value, str) else "")
    if path.startswith("output/"):
        found.wrong(f"paths count from the phase's output/ already: write {path[7:]!r}")
    if closed := sorted(CLOSED_TO_AGENTS.intersection(part.lower() for part in PurePosixPath(path).parts)):
        found.wrong(f"no agent may write {closed[0]!r}: programs of its user obey what is there")
    found.end()
    return path


def _paths(kind: Kind) -> Kind:
    """Paths that can be there together: a file cannot be a folder too, as ``a`` would beside ``a/b``."""
    listed = each(kind, "paths", MAX_PATHS)

    def read(value: Any) -> tuple[str, ...]:
        found, seen = Findings(), list[PurePosixPath]()
        for number, entry in enumerate(value if isinstance(value, list | tuple) else ()):
            if path_problem(entry):
                continue
            path = PurePosixPath(entry)
            near = next((other for other in seen if other in path.parents or path in other.parents), None)
            if path in seen:
                found.wrong(f"names {entry!r} twice", number)
            elif near:
                file, inside = sorted((str(path), str(near)), key=len)
                found.wrong(f"{file!r} cannot be a file and the folder of {inside!r}", number)
            seen.append(path)
        result: tuple[str, ...] = found.read(listed, value)
        found.end()
        return result

    return read


def _command(value: object) -> object:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a list of words such as [make, test]; a line for the shell needs shell: true")
    if not value[0].strip() or any("\0" in word for word in value):
        raise ValueError("must begin with a program, and hold no NUL")
    return value


_TEXTS = each(_text, "texts", MAX_PATHS)
_PROGRAM = {"command": _command, "shell": yes, "seconds": _seconds, "memory_mb": whole(64, 1_048_576, also=0)}
_CRITERIA = {"criteria": _TEXTS}

#: The gates there are, each with its options.
GATES: Mapping[str, Mapping[str, Kind]] = {
    "files_exist": {"files": _paths(_output), **_CRITERIA},
    "syntax": {"ignore": _TEXTS, **_CRITERIA},
    "tests_pass": _PROGRAM | _CRITERIA,
    "adr_valid": {"files": _paths(_output), **_CRITERIA},
    "command": {"name": _text} | _PROGRAM | _CRITERIA,
}


def _gate(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        raise ValueError(f"must be the name of a gate, or a mapping with its type, not {noun_of(entry)}")
    found, kind = Findings(), entry.get("type")
    if not isinstance(kind, str) or kind not in GATES:
        there = ", ".join(GATES)
        found.wrong(f"no gate {str(kind)[:80]!r}{nearest(str(kind), GATES)} (there are: {there})", "type")
        found.end()
    found.read(record({"type": _text, **GATES[str(kind)]}, blank=True), entry)
    if kind == "command" and entry.get("command") is None:
        found.wrong("the gate 'command' needs the command to run, such as [make, test]", "command")
    if isinstance(entry.get("command"), str) != bool(entry.get("shell")) and entry.get("command") is not None:
        found.wrong("a list of words runs without a shell; a text needs shell: true", "shell")
    found.end()
    return entry


def _gates(value: Any) -> Any:
    entries = gate_entries(value)
    return each(_gate, "gates", MAX_GATES)(entries) if isinstance(value, list) else _gate(entries[0])


#: One phase.
PHASE = record(
    {
        "id": _id,
        "name": _text,
        "type": _type,
        "description": _text,
        "config": _config,
        "input_files": _paths(_path),
        "output_files": _paths(_output),
        "quality_gate": _gates,
        "verify_agent": yes,
        "max_attempts": whole(1, MAX_ATTEMPTS),
    },
    ("id", "description"),
    "a phase",
    blank=True,
)


# A phase: a piece of work whose output is really checked (ADR-025). It travels inside a turn's request as JSON.
# docs/WORKFLOW-SYSTEM.md describes the keys; ``phase_checks`` says the faults of a value.

#: Runs of a phase when it names no number (ADR-025: three).
DEFAULT_ATTEMPTS = 3
MAX_PHASES = 200


@dataclass(frozen=True, slots=True)
class QualityGate:
    """A deterministic check by name, with its options; ``criteria`` are for the verifier, who judges the rest."""

    type: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return what only a reader can judge, one sentence each."""
        return tuple(self.options.get("criteria", ()))

    def to_dict(self) -> dict[str, Any]:
        """The gate as phases.yaml writes it."""
        return {"type": self.type, **self.options}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a workflow.

    Attributes:
        id: unique in its file; names the phase in commands, folders and events.
        name: for people. type: what kind of work it is, for people; it steers nothing.
        description: what the agent is to do.
        config: notes for the agent; ``model`` names the model of ``HELIX_MODELS`` that does the work.
        input_files: what the agent reads, relative to the folder of phases.yaml.
        output_files: what must be there afterwards, relative to the phase's ``output/``.
        quality_gates: the gates after ``files_exist`` and ``syntax``, which always come first.
        verify_agent: whether an independent agent judges the output once the gates have passed.
        max_attempts: how often the agent is run at most.
    """

    id: str
    name: str = ""
    type: str = "development"
    description: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    input_files: tuple[str, ...] = ()
    output_files: tuple[str, ...] = ()
    quality_gates: tuple[QualityGate, ...] = ()
    verify_agent: bool = False
    max_attempts: int = DEFAULT_ATTEMPTS

    @property
    def model(self) -> str:
        """The model that does the work; empty for the one the caller names."""
        return str(self.config.get("model", ""))

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return what the verifier is to judge besides the description."""
        return tuple(criterion for gate in self.quality_gates for criterion in gate.criteria)

    def to_dict(self) -> dict[str, Any]:
        """The phase as phases.yaml writes it, JSON-ready; ``from_dict`` reads it back."""
        return {
            "id": self.id,
            "name": self.name or self.id,
            "type": self.type,
            "description": self.description,
            "config": self.config,
            "input_files": list(self.input_files),
            "output_files": list(self.output_files),
            "quality_gate": [gate.to_dict() for gate in self.quality_gates],
            "verify_agent": self.verify_agent,
            "max_attempts": self.max_attempts,
        }

    @classmethod
    def from_dict(cls, data: object) -> Phase:
        """Read one phase. Raises ``PhaseError``: it is wrong; names every problem."""
        found = Findings()
        found.read(PHASE, data)
        if found.problems:
            raise PhaseError(found.problems)
        return _read(data)

    @classmethod
    def stored(cls, data: object) -> Phase:
        """The phase of a stored turn. It was checked then: what is checked more strictly since does not stop it.

        Raises ``PhaseError``: this version cannot read it, for example because a newer one wrote it.
        """
        try:
            return _read(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"the stored phase cannot be read by this version ({type(error).__name__})"
            raise PhaseError([Problem((), problem)]) from error


def read_phases(data: object) -> tuple[Phase, ...]:
    """Read the content of a phases.yaml: a list of phases, or a mapping with the list under ``phases``.

    Raises ``PhaseError``: it is wrong; names every problem.
    """
    try:
        return checked_phases(data)
    except Invalid as error:
        raise PhaseError(error.problems) from None


def checked_phases(data: object) -> tuple[Phase, ...]:
    """As ``read_phases``, but raises ``Invalid``, as a kind does."""
    found, prefix, seen = Findings(), list[str](), dict[str, int]()
    if isinstance(data, Mapping):
        known, prefix = ("phases", "name", "description"), ["phases"]
        for key in data:
            if key not in known:
                found.wrong(unknown(key, known), str(key)[:80], of_key=True)
        data = data.get("phases")
    entries = data if isinstance(data, list) else []
    if not entries:
        found.wrong("must be a list of phases with at least one phase", *prefix)
    if len(entries) > MAX_PHASES:
        found.wrong(f"has more than {MAX_PHASES} phases", *prefix)
        found.end()
    for number, entry in enumerate(entries):
        found.read(PHASE, entry, *prefix, number)
        name = spelled(entry.get("id")) if isinstance(entry, Mapping) else ""
        if name and name in seen:
            found.wrong(f"phase {seen[name] + 1} has the id {name!r} already", *prefix, number, "id")
        seen.setdefault(name, number)
    found.end()
    return tuple(map(_read, entries))


def _read(data: Any) -> Phase:
    """A phase that was found right. A key without a value counts as left out."""
    data = {key: value for key, value in data.items() if value is not None}
    name = spelled(data["id"])
    gates = gate_entries(data.get("quality_gate"))
    return Phase(
        id=name,
        name=data.get("name", name),
        type=data.get("type", "development"),
        description=data["description"],
        config=dict(data.get("config", {})),
        input_files=tuple(data.get("input_files", ())),
        output_files=tuple(data.get("output_files", ())),
        quality_gates=tuple(QualityGate(gate["type"], _options(gate)) for gate in gates),
        verify_agent=data.get("verify_agent", False),
        max_attempts=data.get("max_attempts", DEFAULT_ATTEMPTS),
    )


def _options(gate: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in gate.items() if key != "type" and value is not None}


# The place of a directory's phases, and their session: each owner has a separate place.
#
# A caller without a key on this machine, such as the command line, has the folder itself:
#
#     DIRECTORY/phases/<id>/                        session: from the directory
#
# An owner with a key has a private place, which no agent of another owner may read:
#
#     projects/phases/<session>/<id>/               session: from the owner and the directory
#
# A record of the first version, of any owner, names the first kind of session and is finished there.

#: What the folder of phases is called; in input files it means the owner's own.
PHASES = "phases"
#: The private places, relative to HELIX_ROOT.
PRIVATE = "projects/phases"
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a plain file", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}


def phase_session(directory: str, owner: str = LOCAL_OWNER) -> str:
    """The session of an owner's phases in a directory: they run one at a time, in order."""
    whose = directory if owner == LOCAL_OWNER else f"{owner}\n{directory}"
    return f"phases-{session_digest(whose)}"


def phases_folder(request: TurnRequest) -> PurePosixPath:
    """The folder that holds a phase turn's phases, one folder for each id; relative to HELIX_ROOT."""
    if request.session_id == phase_session(request.directory):
        return PurePosixPath(request.directory) / PHASES
    return PurePosixPath(PRIVATE) / phase_session(request.directory, request.owner)


def input_file(root: Path, request: TurnRequest, path: str) -> Path:
    """Locate an input file of a phase: in the directory, or among the owner's phases (``phases/ID/output/``)."""
    first, *rest = PurePosixPath(path).parts
    if first == PHASES:
        return root.joinpath(phases_folder(request), *rest)
    return root / request.directory / path


def directory_problem(root: Path, directory: str) -> str:
    """Return why phases cannot run in a directory; empty when they can. Links are not followed.

    ``directory`` is relative to ``root``, which is HELIX_ROOT.
    """
    if problem := folder_problem(directory):
        return problem
    kind = kind_at(root, directory)
    if kind == "a folder":
        return ""
    return f"there is no folder {directory[:80]!r} below HELIX_ROOT" if not kind else f"{directory[:80]!r} is {kind}"


def input_problems(root: Path, phases: Sequence[Phase], requests: Sequence[TurnRequest]) -> list[Problem]:
    """Name what cannot be an input file in its place: a folder, a link, a pipe. A missing one may come yet."""
    return [
        Problem(("phases", number, "input_files", place), problem)
        for number, (phase, request) in enumerate(zip(phases, requests, strict=True))
        for place, path in enumerate(phase.input_files)
        if (problem := input_problem(root, request, path))
    ]


def input_problem(root: Path, request: TurnRequest, path: str) -> str:
    """Return why what lies there can be no input file; empty when it is a plain file, or nothing."""
    place = input_file(root, request, path)
    if ".helix" in place.relative_to(root).parts:
        return f"{path[:80]!r} is part of the installation, not of the project"
    kind = kind_at(root, str(place.relative_to(root)))
    return f"{path[:80]!r} is {kind}, not a plain file" if kind not in {"", "a plain file"} else ""


def kind_at(root: Path, path: str) -> str:
    """Return what lies at a path below ``root``: a plain file, a folder, or why it is neither; empty for nothing.

    No link on the way is followed.
    """
    place, kind = root, "a folder"
    for part in PurePosixPath(path).parts:
        if kind != "a folder":
            return ""
        place /= part
        try:
            kind = _KINDS.get(stat.S_IFMT(os.lstat(place).st_mode), "a device or socket")
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"unreadable ({error.strerror})"
        if kind == "a link":
            return kind
    return kind

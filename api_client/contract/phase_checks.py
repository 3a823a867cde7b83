"""Checks of the values in phases.yaml."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.limits import MAX_ATTEMPTS
from api_client.contract.value_kinds import (
    Findings,
    Kind,
    Problem,
    describe_type,
    integer_kind,
    list_kind,
    read_bool,
    record_kind,
    suggest_name,
)

MAX_PATHS, MAX_GATES = 200, 20
#: In characters; ``config`` as JSON.
MAX_TEXT, MAX_CONFIG = 20_000, 16_384
#: Limits of file systems: characters of a path, bytes of a name.
MAX_PATH, MAX_NAME_BYTES = 1024, 255
#: Files that the Claude CLI never lets an agent write, in lower case (docs/claude-cli.md).
CLOSED_TO_AGENTS = frozenset(
    {".claude", ".claude.json", ".git", ".gitconfig", ".gitmodules", ".husky", ".idea", ".mcp.json", ".vscode"}
    | {".bash_profile", ".bashrc", ".profile", ".ripgreprc", ".zprofile", ".zshrc"}
)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)


class PhaseError(BadRequest):
    """Raised when phases cannot be carried out. ``problems`` lists everything that is wrong."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)), param="phases", code="invalid_phases")
        self.problems = tuple(problems)


def spell_id(value: object) -> str:
    """Return a phase's id as text, because YAML reads ``id: 1`` as a number, or '' for an invalid id."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if number or isinstance(value, str) else ""


def list_gates(value: Any) -> list[Any]:
    """List a phase's quality gates as mappings. A plain name ``x`` becomes ``{"type": "x"}``."""
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [{"type": entry} if isinstance(entry, str) else entry for entry in entries]


def _read_id(value: object) -> str:
    if not _ID.fullmatch(spell_id(value)):
        raise ValueError("must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit")
    return spell_id(value)


def _read_type(value: object) -> str:
    if not isinstance(value, str) or not _TYPE.fullmatch(value):
        raise ValueError("must be a small word such as development, review or documentation")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {describe_type(value)}")
    if not value.strip():
        raise ValueError("must not be empty")
    if len(value) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters")
    return value


def _read_config(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"must be a mapping with texts as keys, not {describe_type(value)}")
    try:
        length = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("must hold only texts, numbers, true, false, null, lists and mappings") from None
    found = Findings()
    if length > MAX_CONFIG:
        found.add_problem(f"must have at most {MAX_CONFIG} characters as JSON")
    if not isinstance(value.get("model", ""), str):
        found.add_problem("must be the name of a model of HELIX_MODELS", "model")
    found.raise_problems()
    return dict(value)


def _read_seconds(value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < float(value) <= 86_400 or not math.isfinite(float(value)):  # type: ignore[arg-type]
        raise ValueError("must be a number of seconds, more than 0 and at most 86400")
    return float(value)  # type: ignore[arg-type]


def explain_bad_path(value: object) -> str:
    """Return why a value is not a valid relative file path, or an empty string if it is valid."""
    if not isinstance(value, str):
        return f"must be a path, not {describe_type(value)}"
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


def explain_bad_folder(value: str) -> str:
    """Return why a folder cannot hold phases, or an empty string if it can."""
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


def _read_path(value: object) -> str:
    if problem := explain_bad_path(value):
        raise ValueError(problem)
    return str(value)


def _read_output(value: object) -> str:
    found = Findings()
    path = found.read_part(_read_path, value) or (value if isinstance(value, str) else "")
    if path.startswith("output/"):
        found.add_problem(f"paths count from the phase's output/ already: write {path[7:]!r}")
    if closed := sorted(CLOSED_TO_AGENTS.intersection(part.lower() for part in PurePosixPath(path).parts)):
        found.add_problem(f"no agent may write {closed[0]!r}: programs of its user obey what is there")
    found.raise_problems()
    return path


def _paths_kind(kind: Kind) -> Kind:
    listed = list_kind(kind, "paths", MAX_PATHS)

    def read_paths(value: Any) -> tuple[str, ...]:
        found, seen = Findings(), list[PurePosixPath]()
        for number, entry in enumerate(value if isinstance(value, list | tuple) else ()):
            if explain_bad_path(entry):
                continue
            path = PurePosixPath(entry)
            near = next((other for other in seen if other in path.parents or path in other.parents), None)
            if path in seen:
                found.add_problem(f"names {entry!r} twice", number)
            elif near:
                file, inside = sorted((str(path), str(near)), key=len)
                found.add_problem(f"{file!r} cannot be a file and the folder of {inside!r}", number)
            seen.append(path)
        result: tuple[str, ...] = found.read_part(listed, value)
        found.raise_problems()
        return result

    return read_paths


def _read_command(value: object) -> object:
    if isinstance(value, str):
        return _read_text(value)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a list of words such as [make, test]; a line for the shell needs shell: true")
    if not value[0].strip() or any("\0" in word for word in value):
        raise ValueError("must begin with a program, and hold no NUL")
    return value


_TEXTS = list_kind(_read_text, "texts", MAX_PATHS)
_PROGRAM = {
    "command": _read_command,
    "shell": read_bool,
    "seconds": _read_seconds,
    "memory_mb": integer_kind(64, 1_048_576, also=0),
}
_CRITERIA = {"criteria": _TEXTS}

GATES: Mapping[str, Mapping[str, Kind]] = {
    "files_exist": {"files": _paths_kind(_read_output), **_CRITERIA},
    "syntax": {"ignore": _TEXTS, **_CRITERIA},
    "tests_pass": _PROGRAM | _CRITERIA,
    "adr_valid": {"files": _paths_kind(_read_output), **_CRITERIA},
    "command": {"name": _read_text} | _PROGRAM | _CRITERIA,
}


def _read_gate(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        raise ValueError(f"must be the name of a gate, or a mapping with its type, not {describe_type(entry)}")
    found, kind = Findings(), entry.get("type")
    if not isinstance(kind, str) or kind not in GATES:
        there = ", ".join(GATES)
        found.add_problem(f"no gate {str(kind)[:80]!r}{suggest_name(str(kind), GATES)} (there are: {there})", "type")
        found.raise_problems()
    found.read_part(record_kind({"type": _read_text, **GATES[str(kind)]}, blank=True), entry)
    if kind == "command" and entry.get("command") is None:
        found.add_problem("the gate 'command' needs the command to run, such as [make, test]", "command")
    if isinstance(entry.get("command"), str) != bool(entry.get("shell")) and entry.get("command") is not None:
        found.add_problem("a list of words runs without a shell; a text needs shell: true", "shell")
    found.raise_problems()
    return entry


def _read_gates(value: Any) -> Any:
    entries = list_gates(value)
    return list_kind(_read_gate, "gates", MAX_GATES)(entries) if isinstance(value, list) else _read_gate(entries[0])


PHASE = record_kind(
    {
        "id": _read_id,
        "name": _read_text,
        "type": _read_type,
        "description": _read_text,
        "config": _read_config,
        "input_files": _paths_kind(_read_path),
        "output_files": _paths_kind(_read_output),
        "quality_gate": _read_gates,
        "verify_agent": read_bool,
        "max_attempts": integer_kind(1, MAX_ATTEMPTS),
    },
    ("id", "description"),
    "a phase",
    blank=True,
)

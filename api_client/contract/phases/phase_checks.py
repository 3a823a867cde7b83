"""Problems of a phase: every check of phases.yaml, each problem one sentence. Looks at values only.

All problems are found at once, so that nobody repairs a phases.yaml line by line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

from api_client.contract.errors import HelixError
from api_client.contract.limits import MAX_ATTEMPTS

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

Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: ``where`` leads to the value (keys, and positions from 0), ``message`` is a sentence."""

    where: Where
    message: str

    def __str__(self) -> str:
        place = "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in self.where)
        return f"{place.lstrip('.')}: {self.message}" if place else self.message


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


def problems_of(data: object) -> Iterator[Problem]:
    """Everything that is wrong with one phase; nothing for one that is right."""
    if not isinstance(data, Mapping):
        yield Problem((), f"a phase must be a mapping with id and description, not {_kind(data)}")
        return
    yield from unknown_keys(data, tuple(_CHECKS))
    for key in ("id", "description"):
        if data.get(key) is None:
            yield Problem((key,), f"a phase needs {key!r}")
    for key, check in _CHECKS.items():
        if data.get(key) is not None:
            yield from (Problem((key, *found.where), found.message) for found in check(data[key]))


def unknown_keys(data: Mapping[Any, Any], known: Sequence[str]) -> Iterator[Problem]:
    """The keys of a mapping that mean nothing, each with the likely one or with all there are."""
    for key in data:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
            yield Problem((str(key)[:80],), f"no such key{hint}")


def _kind(value: object) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "nothing" if value is None else type(value).__name__)


_Check = Callable[[Any], Iterator[Problem]]


def _check_id(value: object) -> Iterator[Problem]:
    if not _ID.fullmatch(spelled(value)):
        yield Problem((), "must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit")


def _check_type(value: object) -> Iterator[Problem]:
    if not isinstance(value, str) or not _TYPE.fullmatch(value):
        yield Problem((), "must be a small word such as development, review or documentation")


def _check_text(value: object) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield Problem((), f"must be a text, not {_kind(value)}")
    elif not value.strip():
        yield Problem((), "must not be empty")
    elif len(value) > MAX_TEXT:
        yield Problem((), f"must have at most {MAX_TEXT} characters")


def _check_texts(value: object) -> Iterator[Problem]:
    if not isinstance(value, list | tuple):
        yield Problem((), f"must be a list of texts, not {_kind(value)}")
    elif len(value) > MAX_PATHS:
        yield Problem((), f"must have at most {MAX_PATHS} entries")
    else:
        for number, entry in enumerate(value):
            yield from (Problem((number,), found.message) for found in _check_text(entry))


def _check_config(value: object) -> Iterator[Problem]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        yield Problem((), f"must be a mapping with texts as keys, not {_kind(value)}")
        return
    try:
        length = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        yield Problem((), "must hold only texts, numbers, true, false, null, lists and mappings")
        return
    if length > MAX_CONFIG:
        yield Problem((), f"must have at most {MAX_CONFIG} characters as JSON")
    if not isinstance(value.get("model", ""), str):
        yield Problem(("model",), "must be the name of a model of HELIX_MODELS")


def _check_yes(value: object) -> Iterator[Problem]:
    if not isinstance(value, bool):
        yield Problem((), f"must be true or false, not {value!r:.40}")


def _whole(low: int, high: int, *, also: int | None = None) -> _Check:
    def check(value: object) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int) or not (low <= value <= high or value == also):
            beside = "" if also is None else f", or {also}"
            yield Problem((), f"must be a whole number from {low} to {high}{beside}")

    return check


def _check_seconds(value: object) -> Iterator[Problem]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < float(value) <= 86_400 or not math.isfinite(float(value)):  # type: ignore[arg-type]
        yield Problem((), "must be a number of seconds, more than 0 and at most 86400")


def path_problem(value: object) -> str:
    """Return why this is not a path below a folder; empty when it is one. Looks at the text only."""
    if not isinstance(value, str):
        return f"must be a path, not {_kind(value)}"
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


def _check_paths(value: object) -> Iterator[Problem]:
    if not isinstance(value, list | tuple):
        yield Problem((), f"must be a list of paths, not {_kind(value)}")
        return
    if len(value) > MAX_PATHS:
        yield Problem((), f"must have at most {MAX_PATHS} paths")
        return
    seen: dict[PurePosixPath, str] = {}
    for number, entry in enumerate(value):
        if found := path_problem(entry):
            yield Problem((number,), found)
        elif (path := PurePosixPath(entry)) in seen:
            yield Problem((number,), f"names {entry!r} twice")
        else:
            yield from (Problem((number,), problem) for problem in _files_and_folders(path, seen))
            seen[path] = entry


def _files_and_folders(path: PurePosixPath, seen: Mapping[PurePosixPath, str]) -> Iterator[str]:
    """A file cannot be a folder too, as ``a`` would beside ``a/b``."""
    for other in seen:
        if other in path.parents or path in other.parents:
            file, inside = sorted((str(path), str(other)), key=len)
            yield f"{file!r} cannot be a file and the folder of {inside!r}"
            return


def _check_output(value: object) -> Iterator[Problem]:
    yield from _check_paths(value)
    for number, entry in enumerate(value if isinstance(value, list | tuple) else ()):
        if not isinstance(entry, str):
            continue
        if entry.startswith("output/"):
            yield Problem((number,), f"paths count from the phase's output/ already: write {entry[7:]!r}")
        if closed := sorted(CLOSED_TO_AGENTS.intersection(part.lower() for part in PurePosixPath(entry).parts)):
            yield Problem((number,), f"no agent may write {closed[0]!r}: programs of its user obey what is there")


def _check_command(value: object) -> Iterator[Problem]:
    if isinstance(value, str):
        yield from _check_text(value)
    elif not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) for word in value):
        yield Problem((), "must be a list of words such as [make, test]; a line for the shell needs shell: true")
    elif not value[0].strip() or any("\0" in word for word in value):
        yield Problem((), "must begin with a program, and hold no NUL")


_LIMITS: Mapping[str, _Check] = {"seconds": _check_seconds, "memory_mb": _whole(64, 1_048_576, also=0)}
_CRITERIA: Mapping[str, _Check] = {"criteria": _check_texts}

#: The gates there are, each with its options.
GATES: Mapping[str, Mapping[str, _Check]] = {
    "files_exist": {"files": _check_output, **_CRITERIA},
    "syntax": {"ignore": _check_texts, **_CRITERIA},
    "tests_pass": {"command": _check_command, "shell": _check_yes, **_LIMITS, **_CRITERIA},
    "adr_valid": {"files": _check_output, **_CRITERIA},
    "command": {"command": _check_command, "shell": _check_yes, "name": _check_text, **_LIMITS, **_CRITERIA},
}


def _check_gates(value: object) -> Iterator[Problem]:
    several = isinstance(value, list)
    entries = gate_entries(value)
    if len(entries) > MAX_GATES:
        yield Problem((), f"must have at most {MAX_GATES} gates")
        return
    for number, entry in enumerate(entries):
        place: Where = (number,) if several else ()
        yield from (Problem((*place, *found.where), found.message) for found in _check_gate(entry))


def _check_gate(entry: object) -> Iterator[Problem]:
    if not isinstance(entry, Mapping):
        yield Problem((), f"must be the name of a gate, or a mapping with its type, not {_kind(entry)}")
        return
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in GATES:
        near = get_close_matches(str(kind), GATES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        yield Problem(("type",), f"no gate {str(kind)[:80]!r}{hint} (there are: {', '.join(GATES)})")
        return
    options = GATES[kind]
    yield from unknown_keys(entry, ("type", *options))
    for key, check in options.items():
        if entry.get(key) is not None:
            yield from (Problem((key, *found.where), found.message) for found in check(entry[key]))
    if kind == "command" and entry.get("command") is None:
        yield Problem(("command",), "the gate 'command' needs the command to run, such as [make, test]")
    if isinstance(entry.get("command"), str) != bool(entry.get("shell")) and entry.get("command") is not None:
        yield Problem(("shell",), "a list of words runs without a shell; a text needs shell: true")


_CHECKS: Mapping[str, _Check] = {
    "id": _check_id,
    "name": _check_text,
    "type": _check_type,
    "description": _check_text,
    "config": _check_config,
    "input_files": _check_paths,
    "output_files": _check_output,
    "quality_gate": _check_gates,
    "verify_agent": _check_yes,
    "max_attempts": _whole(1, MAX_ATTEMPTS),
}

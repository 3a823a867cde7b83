"""Compares an answer's statements with the log of tool calls. In doubt a statement counts as true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from worker.enforcement.tool_call_log import ANY_NAME, ToolCall, ToolCallLog, changes_nothing
from worker.plugins.claims.statements import WorkStatement

Ground = Literal[
    "CLAIMED_FILE_NOT_THERE", "CLAIMED_FILE_NOT_CHANGED", "CLAIMED_TESTS_NOT_RUN", "CLAIMED_TESTS_FAILED",
    "CLAIMED_TEST_COUNT", "CLAIMED_COMMAND_NOT_RUN", "CLAIMED_COMMAND_FAILED", "CLAIMED_FILE_COUNT",
    "CLAIMED_CALL_NOT_MADE",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A statement in an answer that the log of tool calls disproves, with the evidence."""

    ground: Ground
    statement: WorkStatement
    evidence: Mapping[str, str]


def find_contradiction(statement: WorkStatement, log: ToolCallLog, tests: Sequence[str] = ()) -> Contradiction | None:
    """Return how the log of tool calls contradicts a statement, or None if there is no contradiction.

    ``tests`` are prefixes of further commands that run tests.
    """
    match statement.subject:
        case "file":
            return _file(statement, log)
        case "files":
            return _files(statement, log)
        case "tests":
            return _tests(statement, log, tests)
        case "command":
            return _command(statement, log)
        case "record":
            return _record(statement, log)


def may_be_same_file(path: str, other: str) -> bool:
    """Return True if two paths may name the same file, because one path ends with the other."""
    mine, others = _parts(path), _parts(other)
    shorter = min(len(mine), len(others))
    return bool(shorter) and mine[-shorter:] == others[-shorter:]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".", "~")]


def _unseen(log: ToolCallLog) -> bool:
    return not log.whole or any(call.kind in {"other", "sent"} and call.ok is not False for call in log.calls)


def _file(statement: WorkStatement, log: ToolCallLog) -> Contradiction | None:
    path = statement.what
    written = [call for call in log.calls if call.kind == "write" and may_be_same_file(path, call.what)]
    if any(call.ok is not False for call in written) or _unseen(log):
        return None
    found = {state for name, state in log.files.items() if may_be_same_file(path, name)}
    if "changed" in found:
        return None
    name = _parts(path)[-1] if _parts(path) else path
    ran = any(call.kind == "run" and name in call.what and call.ok is not False for call in log.calls)
    if ran and not found:  # a command names the file, which may be where nobody looked
        return None
    if "there" in found:
        return Contradiction("CLAIMED_FILE_NOT_CHANGED", statement, {"path": path})
    return Contradiction("CLAIMED_FILE_NOT_THERE", statement, {"path": path})


def _files(statement: WorkStatement, log: ToolCallLog) -> Contradiction | None:
    if _unseen(log):
        return None
    calls = [call for call in log.calls if call.kind == "write" and call.ok is not False]
    changed = [name for name, state in log.files.items() if state == "changed"]
    new, old = _distinct(call.what for call in calls if call.new), _distinct(c.what for c in calls if not c.new)
    every = _distinct([*changed, *(call.what for call in calls)])
    kept = [path for path in every if any(may_be_same_file(path, name) for name in changed)]
    most = len(every)
    fits = {most, len(kept), len(changed), len(new), len([path for path in old if path not in new]), len(old)}
    if statement.count in fits or (statement.some and statement.count <= most):
        return None
    return Contradiction("CLAIMED_FILE_COUNT", statement, {"count": str(most)})


def _distinct(paths: Iterable[str]) -> list[str]:
    found: list[str] = []
    for path in sorted(set(paths), key=len, reverse=True):
        if not any(may_be_same_file(path, other) for other in found):
            found.append(path)
    return found


#: Quantifiers that make a statement stronger: "All 3 tests pass".
_EVERY = re.compile(r"\b(?:all|every|alle|sämtliche|full|whole|gesamten?)\b", re.IGNORECASE)


def _tests(statement: WorkStatement, log: ToolCallLog, tests: Sequence[str]) -> Contradiction | None:
    named = [call for call in log.calls if call.kind == "run" and (call.tests or call.what.startswith(tuple(tests)))]
    runs = [call for call in named if call.ran]
    if not runs:
        silent = statement.vague or _unseen(log)
        return None if silent else Contradiction("CLAIMED_TESTS_NOT_RUN", statement, {})
    last = runs[-1]
    exact = last.counts and last.counts.passed == statement.count and not _EVERY.search(statement.said)
    if statement.passed and _failed(last) and not exact:
        return Contradiction("CLAIMED_TESTS_FAILED", statement, _evidence(last))
    if not statement.count or _unseen(log):
        return None
    latest = {call.what: call for call in runs}
    counts = [call.counts for call in latest.values() if call.counts is not None]
    if len(counts) < len(latest) or not counts:
        return None
    numbers = {each.passed for each in counts} | {each.passed + each.failed for each in counts}
    total = sum(each.passed for each in counts)
    if statement.count in {*numbers, total} or (statement.some and statement.count <= total):
        return None
    return Contradiction("CLAIMED_TEST_COUNT", statement, {"command": last.what, "count": str(counts[-1].passed)})


def _failed(call: ToolCall) -> bool:
    return call.ok is False or bool(call.code) or bool(call.counts and call.counts.failed)


def _evidence(call: ToolCall) -> dict[str, str]:
    ends = [f"exit code {call.code}"] if call.code is not None and (call.code or not call.counts) else []
    ends += [f"{call.counts.failed} failed, {call.counts.passed} passed"] if call.counts else []
    return {"command": call.what, "end": ", ".join(ends) or "an error"}


_HEAD = re.compile(
    r"^(?:(?:\w+=\S*|uv|poetry|pdm|pipenv|run|npx|pnpx|exec|python3?|-m|sudo|time|env|\.venv/bin/\S*/)\s+)+"
)


def split_command(command: str) -> list[str]:
    """Split a command into words, without a launcher such as ``python -m``, ``npx`` or ``uv run``."""
    text = _HEAD.sub("", command.strip())
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return [words[0].rpartition("/")[2] or words[0], *words[1:]] if words else []


def _names(command: str, claimed: str) -> bool:
    wanted = split_command(claimed)
    if not wanted:
        return False
    if claimed.strip() in command:
        return True
    for segment in re.split(r"&&|\|\||[;|\n]", command):
        rest = iter(split_command(segment))
        if all(any(word == each.rstrip(";") for each in rest) for word in wanted):
            return True
    return False


def _command(statement: WorkStatement, log: ToolCallLog) -> Contradiction | None:
    calls = [call for call in log.calls if call.kind == "run" and _names(call.what, statement.what)]
    ran = [call for call in calls if call.ran]
    if not ran:
        return (
            None if _unseen(log) else Contradiction("CLAIMED_COMMAND_NOT_RUN", statement, {"command": statement.what})
        )
    if statement.passed and _failed(ran[-1]):
        return Contradiction("CLAIMED_COMMAND_FAILED", statement, _evidence(ran[-1]))
    return None


def _record(statement: WorkStatement, log: ToolCallLog) -> Contradiction | None:
    """Compare a statement about a record, such as a ticket or a message, with the calls that could have made it."""
    made = [call for call in log.calls if call.kind == "sent" and call.ran and call.ok is not False]
    others = [call for call in log.calls if call.kind in {"run", "other"} and call.ran and call.ok is not False]
    if not log.whole or any(not call.tests and not changes_nothing(call.what) for call in others):
        return None
    names = {name for call in made for name in call.names}
    wanted = {statement.what, statement.what.rpartition("-")[2]}
    doubt = not statement.what or ANY_NAME in names or any(call.ok is None for call in made)
    if made and (doubt or wanted & names):
        return None
    return Contradiction("CLAIMED_CALL_NOT_MADE", statement, {"what": statement.what})

"""Scripts of the scripted agent: reading the YAML file, telling the faults of it, choosing what to play.

The format is in docs/scripted-agent.md.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from api_client.contract.errors import HelixError
from worker.runners.base import ErrorKind

#: The built-in script: what is played when none is named, German and English. Who asks in German is answered so.
BUILT_IN = tuple(Path(__file__).with_name(name) for name in ("demo_de.yaml", "demo_en.yaml"))

#: Largest script file in bytes.
MAX_SCRIPT = 4 * 2**20

#: A step as it is played: its name and its fields.
Step = tuple[str, dict[str, Any]]


class ScriptError(HelixError):
    """A script cannot be read, or has nothing to say to a message. The message names file, rule, list and step."""

    code = "invalid_script"


@dataclass(frozen=True, slots=True)
class Rule:
    """The agent's steps for messages that match. Run ``n`` plays list ``n``; the last list repeats.

    Attributes:
        name: for people and for demos. when: text the message contains; empty matches every message.
        pattern: expression the message matches instead. by: what counts the runs, ``attempts`` or ``deliveries``.
        lists: the lists of steps.
    """

    name: str
    when: str
    pattern: re.Pattern[str] | None
    by: str
    lists: tuple[tuple[Step, ...], ...]

    def matches(self, message: str) -> bool:
        """True when this rule is meant for the message."""
        return bool(self.pattern.search(message)) if self.pattern else self.when in message


def steps_for(script: tuple[Rule, ...], message: str, attempt: int, delivery: int) -> tuple[Step, ...]:
    """Return what the agent plays in this run; attempt and delivery count from 1.

    Raises:
        ScriptError: no rule matches the message.
    """
    for rule in script:
        if rule.matches(message):
            run = attempt if rule.by == "attempts" else delivery
            return rule.lists[min(run, len(rule.lists)) - 1]
    raise ScriptError("no rule of the script matches the message; a last rule without 'when' matches every message")


def load(path: Path) -> tuple[Rule, ...]:
    """Read a script. A file that has not changed is not read again.

    Raises:
        ScriptError: it cannot be read or is wrong; says where.
    """
    try:
        facts = path.stat()
        if facts.st_size > MAX_SCRIPT:
            raise ScriptError(f"{path}: larger than {MAX_SCRIPT} bytes")
        return _load(path, facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"{path}: not UTF-8: {error}") from error


@functools.lru_cache(maxsize=32)
def _load(path: Path, _modified: int, _size: int) -> tuple[Rule, ...]:
    return parse(path.read_text(encoding="utf-8"), str(path))


def built_in() -> tuple[Rule, ...]:
    """The rules of the built-in script."""
    return tuple(rule for path in BUILT_IN for rule in load(path))


def parse(text: str, source: str) -> tuple[Rule, ...]:
    """Read a script's text; ``source`` names it in errors.

    Raises:
        ScriptError: it is wrong; says where.
    """
    try:
        rules = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ScriptError(f"{source}: not valid YAML: {error}") from error
    if not isinstance(rules, list) or not rules:
        raise ScriptError(f"{source}: must be a list of rules")
    return tuple(_rule(rule, f"{source}: rule {number}") for number, rule in enumerate(rules, 1))


def _rule(rule: object, where: str) -> Rule:
    if not isinstance(rule, dict):
        raise ScriptError(f"{where}: must be a mapping with 'when' and 'attempts'")
    if unknown := rule.keys() - {"name", "when", "matches", "attempts", "deliveries"}:
        raise ScriptError(f"{where}: unknown {', '.join(sorted(map(repr, unknown)))}")
    for key in ("name", "when", "matches"):
        if key in rule and not isinstance(rule[key], str):
            raise ScriptError(f"{where}: {key!r} must be a text")
    if "when" in rule and "matches" in rule:
        raise ScriptError(f"{where}: give 'when' (a text) or 'matches' (an expression), not both")
    by = [key for key in ("attempts", "deliveries") if key in rule]
    if len(by) != 1:
        raise ScriptError(f"{where}: give 'attempts' or 'deliveries', one of the two")
    try:
        pattern = re.compile(rule["matches"]) if "matches" in rule else None
    except re.error as error:
        raise ScriptError(f"{where}: 'matches' is not an expression: {error}") from error
    lists = rule[by[0]]
    if not isinstance(lists, list) or not lists or not all(isinstance(steps, list) for steps in lists):
        raise ScriptError(f"{where}: {by[0]!r} must be a list of lists of steps")
    read = tuple(
        tuple(_step(step, f"{where}, {by[0]} {run}, step {number}") for number, step in enumerate(steps, 1))
        for run, steps in enumerate(lists, 1)
    )
    return Rule(rule.get("name", ""), rule.get("when", "").strip(), pattern, by[0], read)


def _step(step: object, where: str) -> Step:
    name, value = (step, None) if isinstance(step, str) else _single(step, where)
    if not isinstance(name, str) or name not in _STEPS:
        raise ScriptError(f"{where}: no such step {name!r}; there are: {', '.join(_STEPS)}")
    shape = _STEPS[name]
    given: Mapping[object, object]
    if value is None:
        given = {}
    elif isinstance(value, dict):
        given = value
    elif shape.main:
        given = {shape.main: value}
    else:
        raise ScriptError(f"{where}: {name} takes nothing")
    fields: dict[str, Any] = {}
    for key, raw in given.items():
        if not isinstance(key, str) or key not in shape.fields:
            raise ScriptError(f"{where}: {name} has no {key!r}; it has: {', '.join(shape.fields) or 'nothing'}")
        try:
            fields[key] = shape.fields[key](raw)
        except ValueError as error:
            raise ScriptError(f"{where}: {name}: {key} {error}") from error
    if missing := [key for key in shape.required if key not in fields]:
        raise ScriptError(f"{where}: {name} needs {', '.join(missing)}")
    return name, fields


def _single(step: object, where: str) -> tuple[object, object]:
    if not isinstance(step, dict) or len(step) != 1:
        raise ScriptError(f"{where}: must be the name of a step, or one name with its value, such as 'say: Hello'")
    return next(iter(step.items()))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text (put it in quotes)")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError("must be a list of texts")
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return value


def _inside(value: object) -> str:
    path = PurePosixPath(_path(value))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("must stay inside the delivery's directory")
    return str(path)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError("must be a number, zero or more")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("must be a whole number, zero or more")
    return value


def _code(value: object) -> int:
    if _count(value) > 255:
        raise ValueError("must be from 0 to 255")
    return _count(value)


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _one_of(*allowed: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return read


@dataclass(frozen=True, slots=True)
class _Shape:
    """The fields of a step; ``main`` is the one that may be written without its name."""

    main: str
    fields: Mapping[str, Callable[[object], Any]]
    required: tuple[str, ...] = ()


_NOTHING = _Shape("", {})

#: Every step there is: its fields as ``playing.Player`` and ``scripted_agent.ProcessPlayer`` take them.
_STEPS: Mapping[str, _Shape] = {
    "say": _Shape("text", {"text": _text, "seconds": _number, "pieces": _count, "goes_on": _yes}, ("text",)),
    "wait": _Shape("seconds", {"seconds": _number}, ("seconds",)),
    "tool": _Shape("name", {"name": _text, "detail": _text}, ("name",)),
    "note": _Shape("text", {"text": _text}, ("text",)),
    "reset": _Shape("reason", {"reason": _text}),
    "write": _Shape("", {"path": _inside, "content": _text}, ("path", "content")),
    "touch": _Shape("path", {"path": _path}, ("path",)),
    "wait_for": _Shape("path", {"path": _path}, ("path",)),
    "call_back": _Shape("url", {"url": _text}, ("url",)),
    "verdict": _Shape(
        "success",
        {"success": _yes, "errors": _texts, "checks_passed": _texts, "feedback": _text, "nonce": _text},
        ("success",),
    ),
    "usage": _Shape("", {"input_tokens": _count, "output_tokens": _count, "cost_usd": _number}),
    "error": _Shape(
        "kind",
        {"kind": _one_of(*ErrorKind), "message": _text, "retry_after": _number},
        ("kind",),
    ),
    "refuse": _Shape("text", {"text": _text, "filtered": _yes}),
    "exit": _Shape("code", {"code": _code}),
    "cut": _NOTHING,
    "flood": _Shape("size", {"size": _count, "kind": _one_of("text", "noise", "line")}, ("size",)),
    "die": _NOTHING,
    "hang": _NOTHING,
    "ignore_sigterm": _NOTHING,
    "fork": _Shape("seconds", {"seconds": _number, "scrub": _yes}),
    "kill_parent": _NOTHING,
}

#: Steps that need their own process.
PROCESS_STEPS = frozenset({"die", "hang", "ignore_sigterm", "fork", "kill_parent"})

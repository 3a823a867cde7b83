"""Reads scripts of the scripted agent and chooses the steps to play (docs/scripted-agent.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from api_client.contract.completion import ErrorKind
from api_client.contract.errors import HelixError
from api_client.contract.value_kinds import (
    Findings,
    Kind,
    Problem,
    choice_kind,
    integer_kind,
    list_kind,
    read_bool,
    record_kind,
)
from worker.files.safe_io import read_cached

#: The built-in scripts; a German question gets a German answer.
BUILT_IN = tuple(Path(__file__).with_name(name) for name in ("demo_de.yaml", "demo_en.yaml"))

MAX_SCRIPT = 4 * 2**20

Step = tuple[str, dict[str, Any]]


class ScriptError(HelixError):
    """Raised when a script is invalid or has no steps for a message."""

    code = "invalid_script"


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """The part of a script that says which steps to play for matching messages.

    Run ``n`` plays the list ``n`` of steps, and the last list repeats.

    Attributes:
        when: text that the message must contain; empty matches every message.
        pattern: regular expression used instead of ``when``.
        by: what counts as a run, ``attempts`` or ``deliveries``.
    """

    name: str
    when: str
    pattern: re.Pattern[str] | None
    by: str
    lists: tuple[tuple[Step, ...], ...]

    def matches(self, message: str) -> bool:
        return bool(self.pattern.search(message)) if self.pattern else self.when in message


def find_steps(script: tuple[ScriptRule, ...], message: str, attempt: int, delivery: int) -> tuple[Step, ...]:
    for rule in script:
        if rule.matches(message):
            run = attempt if rule.by == "attempts" else delivery
            return rule.lists[min(run, len(rule.lists)) - 1]
    raise ScriptError("no rule of the script matches the message; a last rule without 'when' matches every message")


def load_script(path: Path) -> tuple[ScriptRule, ...]:
    """Read a script file and return its rules. Unchanged files are not read again. Raises ``ScriptError``."""
    return read_cached(path, parse_script, MAX_SCRIPT, ScriptError)


def load_built_in() -> tuple[ScriptRule, ...]:
    """Return the rules of the scripts included in this package."""
    return tuple(rule for path in BUILT_IN for rule in load_script(path))


def parse_script(text: str, source: str) -> tuple[ScriptRule, ...]:
    """Parse the YAML text of a script and return its rules. Error messages name ``source``.

    Raises ``ScriptError`` with one line per problem.
    """
    try:
        rules = yaml.safe_load(text)
        found = Findings()
        read = found.read_part(list_kind(_parse_rule, "rules"), rules or None)
        if found.problems:
            placed = _locate_problems(found.problems, yaml.compose(text, yaml.SafeLoader))
            raise ScriptError("\n".join(f"{source}:{problem}" for problem in placed))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ScriptError(f"{source}: not valid YAML: {error}") from error
    return tuple(read)


def _locate_problems(problems: Sequence[Problem], root: yaml.Node | None) -> Iterator[Problem]:
    for problem in problems:
        at = node = root
        for step in problem.where:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                at = node = node.value[step]
            elif isinstance(node, yaml.MappingNode):
                key, node = next((pair for pair in node.value if pair[0].value == step), (node, node))
                at = key if problem.of_key else node
        line, column = (at.start_mark.line, at.start_mark.column) if at else (0, 0)
        yield replace(problem, line=line + 1, column=column + 1)


def _parse_rule(value: Any) -> ScriptRule:
    found = Findings()
    lists = list_kind(list_kind(_parse_step, "steps"), "lists of steps")
    kinds = {
        "name": _parse_text,
        "when": _parse_text,
        "matches": _parse_pattern,
        "attempts": lists,
        "deliveries": lists,
    }
    rule = found.read_part(record_kind(kinds, noun="a rule"), value) or {}
    given = value if isinstance(value, Mapping) else {}
    by = [key for key in ("attempts", "deliveries") if key in given]
    if "when" in given and "matches" in given:
        found.add_problem("give 'when' (a text) or 'matches' (an expression), not both")
    if len(by) != 1 and isinstance(value, Mapping):
        found.add_problem("give 'attempts' or 'deliveries', one of the two")
    elif by and not given[by[0]]:
        found.add_problem("must be a list of lists of steps", by[0])
    found.raise_problems()
    return ScriptRule(rule.get("name", ""), rule.get("when", "").strip(), rule.get("matches"), by[0], rule[by[0]])


def _parse_pattern(value: object) -> re.Pattern[str]:
    try:
        return re.compile(_parse_text(value))
    except re.error as error:
        raise ValueError(f"is not an expression: {error}") from error


def _parse_step(step: Any) -> Step:
    if isinstance(step, dict) and len(step) == 1:
        name, value = next(iter(step.items()))
    elif isinstance(step, str):
        name, value = step, None
    else:
        raise ValueError("must be the name of a step, or one name with its value, such as 'say: Hello'")
    if name not in _STEPS:
        raise ValueError(f"no such step {name!r}; there are: {', '.join(_STEPS)}")
    shape, found = _STEPS[name], Findings()
    if value is not None and not isinstance(value, dict):
        if not shape.main:
            found.add_problem("takes nothing", name)
            found.raise_problems()
        value = {shape.main: value}
    fields = found.read_part(record_kind(shape.fields, shape.required, name), value or {}, name)
    found.raise_problems()
    return name, fields


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text (put it in quotes)")
    return value


def _parse_path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return value


def _parse_inner_path(value: object) -> str:
    path = PurePosixPath(_parse_path(value))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("must stay inside the delivery's directory")
    return str(path)


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError("must be a number, zero or more")
    return float(value)


@dataclass(frozen=True, slots=True)
class _StepShape:
    """The fields of one step in a script. ``main`` may be given without its field name."""

    main: str
    fields: Mapping[str, Kind]
    required: tuple[str, ...] = ()


_NOTHING, _COUNT, _TEXTS = _StepShape("", {}), integer_kind(0), list_kind(_parse_text, "texts")

#: Steps -> fields, as ``ScriptPlayer`` and ``ProcessPlayer`` accept them.
_STEPS: Mapping[str, _StepShape] = {
    "say": _StepShape(
        "text", {"text": _parse_text, "seconds": _parse_number, "pieces": _COUNT, "goes_on": read_bool}, ("text",)
    ),
    "wait": _StepShape("seconds", {"seconds": _parse_number}, ("seconds",)),
    "tool": _StepShape("name", {"name": _parse_text, "detail": _parse_text}, ("name",)),
    "note": _StepShape("text", {"text": _parse_text}, ("text",)),
    "reset": _StepShape("reason", {"reason": _parse_text}),
    "write": _StepShape("", {"path": _parse_inner_path, "content": _parse_text}, ("path", "content")),
    "touch": _StepShape("path", {"path": _parse_path}, ("path",)),
    "wait_for": _StepShape("path", {"path": _parse_path}, ("path",)),
    "call_back": _StepShape("url", {"url": _parse_text}, ("url",)),
    "verdict": _StepShape(
        "success",
        {
            "success": read_bool,
            "errors": list_kind(_parse_text, "texts"),
            "checks_passed": list_kind(_parse_text, "texts"),
            "feedback": _parse_text,
            "nonce": _parse_text,
        },
        ("success",),
    ),
    "usage": _StepShape("", {"input_tokens": _COUNT, "output_tokens": _COUNT, "cost_usd": _parse_number}),
    "error": _StepShape(
        "kind", {"kind": choice_kind(ErrorKind), "message": _parse_text, "retry_after": _parse_number}, ("kind",)
    ),
    "refuse": _StepShape("text", {"text": _parse_text, "filtered": read_bool}),
    "exit": _StepShape("code", {"code": integer_kind(0, 255)}),
    "cut": _NOTHING,
    "flood": _StepShape("size", {"size": _COUNT, "kind": choice_kind(("text", "noise", "line"))}, ("size",)),
    "die": _NOTHING,
    "hang": _NOTHING,
    "ignore_sigterm": _NOTHING,
    "fork": _StepShape("seconds", {"seconds": _parse_number, "scrub": read_bool}),
    "kill_parent": _NOTHING,
}

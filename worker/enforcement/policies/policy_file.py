"""A policy file, read and checked: all of its problems at once, each with its line and column."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from api_client.contract.declared import (
    Findings,
    Invalid,
    Kind,
    default_of,
    each,
    fields_of,
    kind_of,
    mapping,
    one_of,
    record,
    settable,
    whole,
    word,
    yes,
)
from api_client.contract.issues import Severity
from api_client.contract.policy import (
    BUILT_IN,
    MAX_ATTEMPTS,
    VERSION,
    Action,
    AppliesTo,
    OnError,
    PolicyFile,
    PolicyRule,
    not_offered,
    offered_validators,
)
from api_client.contract.tool_calls import ToolRule
from worker.enforcement.documents.frontmatter import read_yaml
from worker.enforcement.rules import RULES, Rule
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import LOCALES

# A rule in a plain Python file that a policy names: ``rules/no_todo.py``, or ``rules/all.py:NoTodo``.
#
# The path is relative to HELIX_ROOT. Workers and the command line load it; a relay only reads its name.

_FORM = re.compile(r"(?P<path>(?:[\w-][\w.-]*/){0,20}(?P<stem>[A-Za-z_]\w*)\.py)(?::(?P<kind>[A-Za-z_]\w*))?")
#: Where agents write: a rule from there would be theirs.
_AGENTS = ("projects/", "output/")


def is_rule_file(rule: str) -> bool:
    """Return whether a policy's word for a rule names a file."""
    return rule.endswith(".py") or ".py:" in rule


def problem_of(rule: str) -> str:
    """Return why this cannot be the name of a rule's file; empty when it can."""
    found = _FORM.fullmatch(rule)
    if found is None:
        return "must be a path below HELIX_ROOT such as rules/no_todo.py, or rules/all.py:NoTodo"
    if found["path"].startswith(_AGENTS):
        return f"must not be in {found['path'].split('/')[0]}/, where agents write"
    return ""


def name_of(rule: str) -> str:
    """The name of a rule in a file, where the policy gives it none: that of the file."""
    found = _FORM.fullmatch(rule)
    return found["stem"] if found else rule


def load_rule(rule: str, *, name: str, root: Path, locale: str, options: Mapping[str, Any]) -> ResponseValidator:
    """The rule that a file has, by the policy's name for it.

    ``name`` is what issues call it; a class that takes no name keeps its own. ``options`` are for the class: fields of
    a ``Rule``, or arguments by their names. Raises ``ValueError``, ``TypeError``, ``ImportError``: the file cannot be
    loaded, or makes no validator with these options.
    """
    found = _FORM.fullmatch(rule)
    if found is None or problem_of(rule):
        raise ValueError(f"{rule}: {problem_of(rule)}")
    path = (root / found["path"]).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{rule}: leads out of HELIX_ROOT")
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ImportError(f"{rule}: {error.strerror} ({path})") from None
    kind = _kind(path, changed, found["kind"] or "", rule)
    if issubclass(kind, Rule):
        return kind(**{"name": name, "root": root, "locale": locale, **options})
    wanted = inspect.signature(kind).parameters
    given = {key: value for key, value in {"name": name, "root": root, "locale": locale}.items() if key in wanted}
    return kind(**given, **options)


@functools.lru_cache(maxsize=256)
def _kind(path: Path, changed: int, name: str, rule: str) -> type[ResponseValidator]:
    """The class in a file. A file that has changed is loaded again."""
    module_name = f"helix_turns_rule_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{rule}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportError(f"{rule}: {type(error).__name__}: {error}") from error
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, ResponseValidator) and each.__module__ == module_name
    ]
    found = [each for each in own if not name or each.__name__ == name]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in own) or "none"
        raise TypeError(f"{rule}: needs one class of ResponseValidator, or its name behind a colon; there: {names}")
    return found[0]


class PolicyError(Invalid):
    """The file cannot be used. ``problems`` are all that were found, in the file's order."""


def read_policy(text: str) -> PolicyFile:
    """Read a policy file. Raises ``PolicyError`` with every problem, its line and its column."""
    validators = offered_validators()
    try:
        found, place = read_yaml(text, _file(validators), "the file is empty; it needs rules")
    except Invalid as error:
        raise PolicyError(error.problems) from None
    return PolicyFile(
        rules=tuple(replace(rule, line=place("rules", number)[0]) for number, rule in enumerate(found["rules"])),
        max_attempts=found.get("max_attempts", 3),
        locale=found.get("locale", ""),
        text=text,
        others=(*validators, *_without_needs()),
        tools=found.get("tools", ()),
    )


def _version(value: Any) -> int:
    if (version := whole()(value)) != VERSION:
        raise ValueError(f"this program reads version {VERSION}")
    return int(version)


def _file(offered: tuple[str, ...]) -> Kind:
    return record(
        {
            "version": _version,
            "max_attempts": ATTEMPTS,
            "locale": one_of(LOCALES),
            "rules": _rules(offered),
            "tools": each(lambda value: ToolRule(**fields_of(ToolRule)(value))),
        },
        ("rules",),
        "the file",
    )


def _rules(offered: tuple[str, ...]) -> Kind:
    entries = each(lambda value: _entry(value, offered))

    def read(value: Any) -> tuple[PolicyRule, ...]:
        rules, found, seen = entries(value), Findings(), set[str]()
        for number, rule in enumerate(rules):
            if rule.name in seen:
                found.wrong(f"the name {rule.name!r} is there twice; give one of them another name", number)
            seen.add(rule.name)
        found.end()
        return tuple(rules)

    return read


ATTEMPTS = whole(1, MAX_ATTEMPTS)
#: The keys of an entry but ``rule`` and ``options``.
ENTRY: Mapping[str, Kind] = {
    "name": word,
    "severity": one_of(Severity),
    "reactions": kind_of(tuple[Action, ...]),
    "max_attempts": ATTEMPTS,
    "applies_to": lambda value: AppliesTo(**fields_of(AppliesTo)({} if value is None else value)),
    "on_error": one_of(OnError),
    "shadow": yes,
    "on_request": yes,
}


def _entry(value: Any, offered: tuple[str, ...]) -> PolicyRule:
    if isinstance(value, str):  # "- step_marker" is short for "- rule: step_marker"
        return PolicyRule(rule=_known(value, offered), name=name_of(value))
    rule = value.get("rule") if isinstance(value, Mapping) else None
    known = isinstance(rule, str) and (rule in (*RULES, *offered) or is_rule_file(rule))
    options = _options(str(rule)) if known else mapping
    kinds = {"rule": lambda name: _known(name, offered), **ENTRY, "options": options}
    found = Findings()
    given = found.read(record(kinds, ("rule",), "a rule"), value)
    if given is not None and rule in RULES and "options" not in given:
        found.read(options, {}, "options")
    if given is not None and given.get("reactions") == ():
        found.wrong("must name at least one reaction", "reactions")
    found.end()
    return PolicyRule(**{"name": name_of(given["rule"]), **given})


def _known(value: Any, offered: tuple[str, ...]) -> str:
    rule = word(value)
    if rule not in (*RULES, *offered):
        wrong = problem_of(rule) if is_rule_file(rule) else not_offered(rule, (*RULES, *offered))
        if wrong:
            raise ValueError(wrong)
    return rule


def _options(rule: str) -> Kind:
    def read(value: Any) -> dict[str, Any]:
        if is_rule_file(rule):  # what they are is known where the file is loaded
            return dict(mapping({} if value is None else value))
        if rule not in RULES:
            if value is not None:
                raise ValueError(f"{rule} has no options")
            return {}
        values: dict[str, Any] = fields_of(RULES[rule])({} if value is None else value)
        RULES[rule](**values)  # raises ValueError
        return values

    return read


@cache
def _without_needs() -> tuple[str, ...]:
    """The rules that start no program, ask no model and need no options: a request may name them."""
    return tuple(name for name, rule in RULES.items() if not rule.reaches_out and _is_bare(rule))


def _is_bare(rule: type[Any]) -> bool:
    try:
        rule()
    except ValueError:
        return False
    return True


# The JSON Schema of a policy file, for editors: made from the same declarations that the file is read by.


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12. Names of installed packages' validators are any string."""
    attempts = {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "helix-turns policy",
        "type": "object",
        "additionalProperties": False,
        "required": ["rules"],
        "properties": {
            "version": {"const": VERSION},
            "max_attempts": attempts,
            "locale": {"enum": list(LOCALES)},
            "rules": {"type": "array", "items": {"anyOf": [{"type": "string"}, _entry_schema(attempts)]}},
            "tools": {"type": "array", "items": _object(ToolRule)},
        },
    }


def _entry_schema(attempts: Mapping[str, Any]) -> dict[str, Any]:
    options = [
        {"if": {"properties": {"rule": {"const": name}}}, "then": {"properties": {"options": _object(rule)}}}
        for name, rule in RULES.items()
    ]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["rule"],
        "properties": {
            "rule": {"type": "string", "examples": [*BUILT_IN, *RULES]},
            "name": {"type": "string"},
            "options": {"type": "object"},
            "severity": _of(Severity),
            "reactions": {"type": "array", "minItems": 1, "items": _of(Action)},
            "max_attempts": attempts,
            "applies_to": _object(AppliesTo),
            "on_error": _of(OnError),
            "shadow": {"type": "boolean"},
            "on_request": {"type": "boolean"},
        },
        "allOf": options,
    }


def _object(made: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(made)
    properties = {}
    for name, option in settable(made).items():
        default = default_of(option)
        default = list(default) if isinstance(default, tuple) else default
        properties[name] = {**_of(hints[name]), "description": option.metadata["what"], "default": default}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _of(kind: Any) -> dict[str, Any]:
    origin = typing.get_origin(kind)
    if origin is tuple:
        return {"type": "array", "items": _of(typing.get_args(kind)[0])}
    if origin is not None:
        return {"type": "object"}
    if issubclass(kind, Enum):
        return {"enum": [str(member.value) for member in kind]}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[kind]}

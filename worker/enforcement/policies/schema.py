"""JSON Schema of a policy file for editors, made from the declarations that also parse the file."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from api_client.contract.issue import Severity
from api_client.contract.limits import MAX_ATTEMPTS
from api_client.contract.policy import RULE_FLAGS, VERSION, Action, AppliesTo, OnError
from api_client.contract.tool_calls import ToolRule
from api_client.contract.validator_names import BUILT_IN
from api_client.contract.value_kinds import field_default, settable_fields
from worker.enforcement.rules import RULES, Rule
from worker.enforcement.validators.codes import LOCALES


def build_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of policy files, with which editors check and complete a policy."""
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
            "tools": {"type": "array", "items": _object_schema(ToolRule)},
        },
    }


def _entry_schema(attempts: Mapping[str, Any]) -> dict[str, Any]:
    options = [
        {"if": {"properties": {"rule": {"const": name}}}, "then": {"properties": {"options": _object_schema(rule)}}}
        for name, rule in _list_loadable_rules()
    ]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["rule"],
        "properties": {
            "rule": {"type": "string", "examples": [*BUILT_IN, *RULES]},
            "name": {"type": "string"},
            "options": {"type": "object"},
            "severity": _type_schema(Severity),
            "reactions": {"type": "array", "minItems": 1, "items": _type_schema(Action)},
            "max_attempts": attempts,
            "applies_to": _object_schema(AppliesTo),
            "on_error": _type_schema(OnError),
            **{name: {"type": "boolean"} for name in RULE_FLAGS},
        },
        "allOf": options,
    }


def _list_loadable_rules() -> Iterator[tuple[str, type[Rule]]]:
    for name in RULES:
        with suppress(ValueError):  # an installed rule that cannot be imported has no options to describe
            yield name, RULES[name]


def _object_schema(made: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(made)
    properties = {}
    for name, option in settable_fields(made).items():
        default = field_default(option)
        default = list(default) if isinstance(default, tuple) else default
        properties[name] = {**_type_schema(hints[name]), "description": option.metadata["what"], "default": default}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _type_schema(kind: Any) -> dict[str, Any]:
    origin = typing.get_origin(kind)
    if origin is tuple:
        return {"type": "array", "items": _type_schema(typing.get_args(kind)[0])}
    if origin is not None:
        return {"type": "object"}
    if issubclass(kind, Enum):
        return {"enum": [str(member.value) for member in kind]}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[kind]}

"""The request bodies as the OpenAPI document shows them. The rules are in ``fields``, ``ask`` and ``conversation``."""

from __future__ import annotations

from typing import Any

from api_client.contract.turn import ACTIONS, DoubleText
from api_client.contract.values.setting_values import ROLES, STREAM_MODES
from api_client.web.bodies.ask import MAX_ATTEMPTS, MAX_DEADLINE_SECONDS, MAX_ID_CHARS
from api_client.web.bodies.response_input import MAX_PAIRS, MAX_VALUE_CHARS, PARTS
from api_client.web.language import LOCALES

_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]},
    },
}
_QUESTION = {"role": "user", "content": "What is an ADR?"}
_TURN: dict[str, Any] = {
    "model": {"type": "string", "examples": ["scripted"]},
    "messages": {"type": "array", "minItems": 1, "items": _MESSAGE, "examples": [[_QUESTION]]},
    "session_id": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
    "validators": {"type": "array", "items": {"type": "string"}},
    "max_attempts": {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS},
    "deadline_seconds": {"type": "number", "minimum": 1, "maximum": MAX_DEADLINE_SECONDS},
    "token_budget": {"type": "integer", "minimum": 0, "maximum": 10**9},
    "cost_budget_usd": {"type": "number", "minimum": 0, "maximum": 10**6},
    "policy": {"type": "object", "additionalProperties": {"type": "array", "items": {"enum": list(ACTIONS)}}},
    "escalation": {"type": "object"},
    "double_text": {"enum": [policy.value for policy in DoubleText]},
    "locale": {"enum": list(LOCALES)},
}


def _body(properties: dict[str, Any], asked: str = "messages") -> dict[str, Any]:
    schema = {"type": "object", "required": ["model", asked], "properties": properties}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


TURN_BODY = _body(_TURN)
_STREAM = {"stream": {"type": ["boolean", "null"]}, "stream_mode": {"enum": list(STREAM_MODES)}, "n": {"const": 1}}
CHAT_BODY = _body(_TURN | _STREAM)
_INPUT_PART = {**_PART, "properties": {"type": {"enum": list(PARTS)}, "text": {"type": "string"}}}
_ITEM: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _INPUT_PART}]},
    },
}
_PAIRS = {"type": "string", "maxLength": MAX_VALUE_CHARS}
RESPONSE_BODY = _body(
    {name: schema for name, schema in _TURN.items() if name != "messages"}
    | {
        "input": {
            "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _ITEM}],
            "examples": [_QUESTION["content"], [_QUESTION]],
        },
        "instructions": {"type": ["string", "null"]},
        "stream": {"type": ["boolean", "null"]},
        "background": {"type": ["boolean", "null"]},
        "metadata": {"type": ["object", "null"], "maxProperties": MAX_PAIRS, "additionalProperties": _PAIRS},
        "store": {"enum": [True, None]},
    },
    asked="input",
)

"""The JSON Schema that a caller demands of an answer, and the checks of such a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from api_client.contract.policy import Action, PolicyFile, PolicyRule
from api_client.contract.turn import TurnRequest

RESPONSE_FORMAT = "response_format"
#: A code fence around the JSON is removed before the answer counts as wrong.
FORMAT_ORDER = (Action.REPAIR, Action.RETRY, Action.FAIL)
#: Rules about the form of a Markdown answer, which an answer of JSON alone cannot meet.
MARKDOWN_RULES = frozenset({"step_marker", "adr_structure", "structure", "code_blocks"})

MAX_CHARS = 65_536
MAX_DEPTH = 48
#: Says what the empty schema says. The rule refuses an empty one, because a file that has one has forgotten it.
_ANYTHING = {"$comment": "any JSON"}
#: Most levels of nested schemas with ``strict``, as OpenAI documents it.
MAX_STRICT_LEVELS = 10
_REFUSED = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$vocabulary")
_STRICT_KEYWORDS = frozenset(
    {"type", "enum", "const", "anyOf", "$ref", "$defs", "definitions", "$schema", "title", "description", "default"}
    | {"properties", "required", "additionalProperties", "items", "minItems", "maxItems", "pattern", "format"}
    | {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The JSON format that a caller demands for the whole answer.

    ``given`` is the format as the caller wrote it, in the form of the Responses API.
    """

    schema: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_request(cls, request: TurnRequest) -> AnswerFormat | None:
        """Return the format that a request demands, or None if the answer may be any text."""
        data = request.attached.get(RESPONSE_FORMAT)
        return cls(data["schema"], data["given"]) if data else None

    def attach_to(self, request: TurnRequest) -> TurnRequest:
        return request.with_attachment(RESPONSE_FORMAT, {"schema": self.schema, "given": self.given})

    def add_instruction(self, text: str) -> str:
        """Return the user's message, followed by the instruction to answer with JSON that matches this schema."""
        schema = json.dumps(self.schema, ensure_ascii=False)
        return (
            f"{text}\n\nAnswer with one JSON value that matches this JSON Schema, and with nothing else: no other text,"
            f" no code fence.\n{schema}"
        )

    def add_rule(self, file: PolicyFile | None) -> PolicyFile:
        """Return a policy with a rule that checks this format. ``file`` is the turn's policy file, if any."""
        options = {"schema": self.schema or _ANYTHING, "where": "whole"}
        rule = PolicyRule(rule="json_schema", name=RESPONSE_FORMAT, options=options, reactions=FORMAT_ORDER)
        rules = [each for each in file.rules if each.name != RESPONSE_FORMAT] if file else []
        return replace(file or PolicyFile(()), rules=(*rules, rule))


def add_format(request: TurnRequest, prompt: str) -> tuple[str, tuple[dict[str, str], ...]]:
    """Return a run's prompt and conversation, with the instruction to answer with JSON in the user's message.

    ``prompt`` is the user's message, or feedback to an answer.
    """
    messages, chosen = request.messages, AnswerFormat.from_request(request)
    if chosen is None or not messages:
        return prompt, messages
    asked = chosen.add_instruction(request.prompt)
    return asked if prompt == request.prompt else prompt, (*messages[:-1], {**messages[-1], "content": asked})


class UnusableSchema(ValueError):
    """Raised for an invalid or unsupported JSON Schema. ``path`` says where, such as ``schema.properties.a``."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


def check_schema(schema: Any, *, strict: bool) -> None:
    """Raise ``UnusableSchema`` if a caller's schema is too large, refers to other documents, or is invalid.

    ``strict`` allows only the subset of JSON Schema that OpenAI documents for structured outputs.
    """
    if not isinstance(schema, dict):
        raise UnusableSchema("schema", "must be an object")
    for path, node, depth in _walk(schema):
        if depth > MAX_DEPTH:
            raise UnusableSchema(_clip(path), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, dict):
            _check_references(schema, path, node)
    if (length := len(json.dumps(schema, ensure_ascii=False))) > MAX_CHARS:
        raise UnusableSchema("schema", f"{length} characters, but at most {MAX_CHARS} are allowed")
    import jsonschema  # only callers with a schema need it

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UnusableSchema(_clip("schema" + error.json_path.removeprefix("$")), error.message[:200]) from None
    if strict:
        if schema.get("type") != "object" or "anyOf" in schema:
            raise UnusableSchema("schema", 'with strict, the root must have the type "object" and no anyOf')
        _check_strict(schema, "schema", 1)


def _walk(root: Any) -> Iterator[tuple[str, Any, int]]:
    waiting: list[tuple[str, Any, int]] = [("schema", root, 0)]
    while waiting:
        path, node, depth = waiting.pop()
        yield path, node, depth
        named = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        waiting += [(f"{path}.{name}", each, depth + 1) for name, each in named if isinstance(each, dict | list)]


def _check_references(root: Mapping[str, Any], path: str, node: Mapping[str, Any]) -> None:
    for name in _REFUSED:
        if isinstance(node.get(name), str | bool):
            raise UnusableSchema(_clip(f"{path}.{name}"), "is not supported; use $ref to #/$defs")
    target, seen = node, list[str]()
    while isinstance(target, dict) and isinstance(reference := target.get("$ref"), str):
        if reference in seen:
            raise UnusableSchema(_clip(f"{path}.$ref"), "leads back to itself")
        seen.append(reference)
        target = _resolve(root, reference)
    if seen and not isinstance(target, dict | bool):
        raise UnusableSchema(_clip(f"{path}.$ref"), "must name a part of this schema, such as #/$defs/step")


def _resolve(root: Any, reference: str) -> Any:
    start, *names = reference.split("/")
    found = root if start == "#" else None
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def _check_strict(schema: Any, path: str, level: int) -> None:
    if not isinstance(schema, dict):
        raise UnusableSchema(_clip(path), "with strict, must be an object")
    if level > MAX_STRICT_LEVELS:
        raise UnusableSchema(_clip(path), f"with strict, at most {MAX_STRICT_LEVELS} levels are allowed")
    for keyword in schema:
        if keyword not in _STRICT_KEYWORDS:
            raise UnusableSchema(_clip(f"{path}.{keyword}"), "is not supported with strict")
    kinds = schema.get("type")
    properties = schema.get("properties", {})
    if "properties" in schema or kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        if schema.get("additionalProperties") is not False:
            raise UnusableSchema(_clip(f"{path}.additionalProperties"), "with strict, must be false")
        required: Sequence[str] = schema.get("required", ())
        if differing := {*properties} ^ {*required}:
            message = f"with strict, must name every property and no other; wrong: {min(differing)[:80]}"
            raise UnusableSchema(_clip(f"{path}.required"), message)
    for name in ("properties", "$defs", "definitions"):
        for key, part in schema.get(name, {}).items():
            _check_strict(part, f"{path}.{name}.{key}", 1 if name != "properties" else level + 1)
    if "items" in schema:
        _check_strict(schema["items"], f"{path}.items", level + 1)
    for number, part in enumerate(schema.get("anyOf", ())):
        _check_strict(part, f"{path}.anyOf.{number}", level)


def _clip(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:200]}..."

"""Models of request bodies, from which the OpenAPI document is built too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, ValidationError, WithJsonSchema

from api_client.contract.limits import MAX_ATTEMPTS, MAX_COST_USD, MAX_DEADLINE_SECONDS, MAX_TOKENS
from api_client.contract.policy import Action
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_values import ROLES
from api_client.contract.turn import DoubleText, Priority
from api_client.contract.validator_names import describe_unknown_validator
from api_client.web.bodies.body_model import Body, with_added_fields
from api_client.web.errors import ApiError, Problems, bad_request, display_value, printable_text
from api_client.web.language import Locale

MAX_ID_CHARS = 255


INPUT_TEXT_TYPES = ("input_text", "output_text", "text")
_PAIRS, _KEY_CHARS, _VALUE_CHARS = 16, 64, 512
_METADATA = f"an object of at most {_PAIRS} texts of {_VALUE_CHARS} characters, with names of {_KEY_CHARS}"
_ID = f"1 to {MAX_ID_CHARS} printable ASCII characters"
_POLICY = f"an object that maps validators to lists of {', '.join(Action)}"
#: JSON types whose wrong values get the code ``invalid_type`` -> description.
_TYPE_PHRASES = {"boolean": "true or false", "string": "a text", "object": "an object", "array": "a list"}


class StreamMode(StrEnum):
    """The stream modes, which say how much of an answer a stream shows before the answer is accepted."""

    #: The draft as it comes, withdrawn if it becomes void; in frames that Open WebUI understands.
    LIVE = "live"
    #: The draft as reasoning, and the answer after it is accepted.
    DRAFT = "draft"
    #: Only the accepted answer.
    VALIDATED = "validated"


def _messages_schema(*parts: str) -> dict[str, Any]:
    properties = {"type": {"enum": list(parts)}, "text": {"type": "string"}}
    part = {"type": "object", "required": ["type", "text"], "properties": properties}
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
    properties = {"role": {"enum": list(ROLES)}, "content": content}
    message = {"type": "object", "required": ["role", "content"], "properties": properties}
    return {"type": "array", "minItems": 1, "items": message, "examples": [[_QUESTION]]}


_QUESTION = {"role": "user", "content": "What is an ADR?"}
_INPUT = {"anyOf": [{"type": "string"}, _messages_schema(*INPUT_TEXT_TYPES)], "examples": [_QUESTION["content"]]}
#: Accept enumerations as text, although the model is strict: JSON has no enumerations.
_FROM_TEXT = Field(strict=False)


class StreamOptions(Body):
    """OpenAI's options for a streamed response."""

    include_usage: bool | None = None


@with_added_fields
class AnswerBody(Body):
    """Base class for the JSON bodies of requests that start a turn, such as chat completions."""

    CONVERSATION_FIELD: ClassVar[str]
    TEXT_TYPES: ClassVar[tuple[str, ...]]

    model: Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1, "examples": ["scripted"]})] = None
    session_id: str | None = Field(None, pattern=f"^[ -~]{{1,{MAX_ID_CHARS}}}$", description=_ID)
    validators: list[Any] | None = Field(None, description="a list of names")
    max_attempts: int | None = Field(None, ge=1, le=MAX_ATTEMPTS)
    deadline_seconds: float | None = Field(None, ge=1, le=MAX_DEADLINE_SECONDS)
    token_limit: int | None = Field(None, ge=0, le=MAX_TOKENS)
    cost_limit_usd: float | None = Field(None, ge=0, le=MAX_COST_USD)
    policy: dict[str, list[str]] | None = Field(None, description=_POLICY)
    double_text: Annotated[DoubleText, _FROM_TEXT] | None = None
    priority: Annotated[Priority, _FROM_TEXT] | None = None
    locale: Locale | None = None
    stream: bool | None = None
    stream_mode: Annotated[StreamMode, _FROM_TEXT] | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=1)
    response_format: Any = None


class TurnBody(AnswerBody):
    """The body of ``POST /v1/turns`` and ``POST /v1/chat/completions``."""

    CONVERSATION_FIELD: ClassVar[str] = "messages"
    TEXT_TYPES: ClassVar[tuple[str, ...]] = ("text",)

    model_config = ConfigDict(json_schema_extra={"required": ["model", "messages"]})

    messages: Annotated[Any, WithJsonSchema(_messages_schema("text"))] = None


class ResponseBody(AnswerBody):
    """The body of a request to OpenAI's Responses API (``/v1/responses``)."""

    CONVERSATION_FIELD: ClassVar[str] = "input"
    TEXT_TYPES: ClassVar[tuple[str, ...]] = INPUT_TEXT_TYPES

    model_config = ConfigDict(json_schema_extra={"required": ["model", "input"]})

    input: Annotated[Any, WithJsonSchema(_INPUT)] = None
    instructions: str | None = None
    background: bool | None = None
    metadata: (
        dict[Annotated[str, Field(max_length=_KEY_CHARS)], Annotated[str, Field(max_length=_VALUE_CHARS)]] | None
    ) = Field(None, max_length=_PAIRS, description=_METADATA)
    store: bool | None = None
    text: dict[str, Any] | None = None


_B = TypeVar("_B", bound=Body)


def read_model_body(model: type[_B], body: Mapping[str, Any], problems: Problems | None = None) -> _B:
    """Parse a request body into an instance of its model.

    ``problems`` collects the errors, and invalid fields then count as missing. Without ``problems``, raises
    ``ApiError``: 400 with every invalid field, its value and the allowed values.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found, schema = problems or Problems(), body_schema(model)
        wrong: dict[int | str, None] = {}
        for each in error.errors(include_url=False, include_context=False):
            field = each["loc"][0]
            if field not in wrong or "description" not in schema["properties"].get(field, {}):
                found.add(_make_field_error(schema, each["loc"], each["type"], each["input"], body))
            wrong[field] = None
    if problems is None:
        found.raise_problems()
    return model.model_validate({name: value for name, value in body.items() if name not in wrong})


@cache
def body_schema(model: type[Body]) -> dict[str, Any]:
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def inline_references(node: Any) -> Any:
        if isinstance(node, list):
            return [inline_references(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline_references(parts[node["$ref"].rpartition("/")[2]])
        return {name: inline_references(value) for name, value in node.items()}

    return dict(inline_references(schema))


def openapi_operation(model: type[Body]) -> dict[str, Any]:
    """Return the OpenAPI entry of a route whose body has this model."""
    schema = body_schema(model)
    required = bool(schema.get("required"))
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _make_field_error(
    schema: dict[str, Any], trail: tuple[int | str, ...], kind: str, given: Any, body: Mapping[str, Any]
) -> ApiError:
    name = ""
    for step in trail:
        within = _non_null_schema(schema)
        if kind == "extra_forbidden" and step == trail[-1]:
            known = ", ".join(within["properties"])
            message = f"{name + '.' if name else ''}{printable_text(str(step), 40)}: no such field; known: {known}"
            return bad_request(message, param=printable_text(f"{name}.{step}".removeprefix("."), 80))
        name = f"{name}[{step}]" if isinstance(step, int) else f"{name}.{step}".removeprefix(".")
        schema = within.get("properties", {}).get(step) or within.get("items") or within["additionalProperties"]
        if "description" in schema and "properties" not in schema:
            given, kind = body[str(trail[0])], kind if step == trail[-1] else ""
            break
    field = _non_null_schema(schema)
    allowed = schema.get("description") or _describe_allowed(field)
    is_kind = field.get("type") in _TYPE_PHRASES and not {"enum", "pattern"} & set(field)
    code = "invalid_type" if is_kind and kind.endswith("_type") else "invalid_value"
    return bad_request(f"{name}: must be {allowed}; got {display_value(given)}", param=name, code=code)


def _non_null_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return dict(next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema))


def _describe_allowed(field: dict[str, Any]) -> str:
    if "enum" in field:
        return f"one of {', '.join(field['enum'])}"
    noun = {"integer": "a whole number", "number": "a number"}.get(field["type"])
    if noun is None:
        return _TYPE_PHRASES[field["type"]]
    if "minimum" not in field:
        return noun
    low, high = field["minimum"], field["maximum"]
    return f"{low}" if low == high else f"{noun} from {low:g} to {high:.15g}"


def read_model_name(model: Any, settings: Settings) -> str:
    """Return the model's name in a request's body. Raises ``ApiError`` if it is invalid or not configured."""
    if not isinstance(model, str) or not model:
        allowed = ", ".join(settings.models)
        raise bad_request(f"model: must be one of {allowed}; got {display_value(model)}", param="model")
    return require_model(model, settings)


def require_model(model: str, settings: Settings) -> str:
    """Return the model's name if the model is configured. Raises ``ApiError`` (404 ``model_not_found``)."""
    if model not in settings.models:
        message = f"the model {display_value(model)} does not exist here; there is: {', '.join(settings.models)}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return model


def read_validators(names: Sequence[Any], offered: Sequence[str], problems: Problems) -> tuple[str, ...]:
    """Return the requested validators without duplicates. Add an error to ``problems`` for each unknown name."""
    for index, name in enumerate(names):
        if name not in offered:
            wrong = (
                describe_unknown_validator(name, offered)
                if isinstance(name, str)
                else f"must be a name; got {display_value(name)}"
            )
            param = f"validators[{index}]"
            problems.add(bad_request(f"{param}: {wrong}", param=param, code="unknown_validator"))
    return tuple(dict.fromkeys(name for name in names if name in offered))

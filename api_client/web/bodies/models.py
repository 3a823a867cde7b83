"""Models of request bodies, which also produce the OpenAPI document.

The functions at the end check fields whose allowed values depend on settings. Messages are declared here, and read in
``conversation`` and ``response_input``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from api_client.contract.decision import DecisionKind
from api_client.contract.escalation import Escalation
from api_client.contract.limits import MAX_ATTEMPTS, MAX_COST_USD, MAX_DEADLINE_SECONDS, MAX_TOKENS
from api_client.contract.offered import not_offered
from api_client.contract.policy import Action
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_values import ROLES
from api_client.contract.turn import DoubleText, Priority
from api_client.interruptions.escalation_admission import escalation_of
from api_client.web.errors import ApiError, Problems, bad_request, shown, shown_text
from api_client.web.language import Locale

MAX_ID_CHARS = 255


#: Types of text parts in a response's input.
INPUT_PARTS = ("input_text", "output_text", "text")
#: OpenAI's limits for ``metadata``.
_PAIRS, _KEY_CHARS, _VALUE_CHARS = 16, 64, 512
_METADATA = f"an object of at most {_PAIRS} texts of {_VALUE_CHARS} characters, with names of {_KEY_CHARS}"
_ID = f"1 to {MAX_ID_CHARS} printable ASCII characters"
_POLICY = f"an object that maps validators to lists of {', '.join(Action)}"
#: JSON types whose wrong values get the code ``invalid_type`` -> description.
_KINDS = {"boolean": "true or false", "string": "a text", "object": "an object", "array": "a list"}


class StreamMode(StrEnum):
    """Amount of a streamed answer that is shown before the answer is accepted."""

    #: The draft as it comes, withdrawn if it becomes void; in frames that Open WebUI understands.
    LIVE = "live"
    #: The draft as reasoning, and the answer after it is accepted.
    DRAFT = "draft"
    #: Only the accepted answer.
    VALIDATED = "validated"


def _messages(*parts: str) -> dict[str, Any]:
    properties = {"type": {"enum": list(parts)}, "text": {"type": "string"}}
    part = {"type": "object", "required": ["type", "text"], "properties": properties}
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
    properties = {"role": {"enum": list(ROLES)}, "content": content}
    message = {"type": "object", "required": ["role", "content"], "properties": properties}
    return {"type": "array", "minItems": 1, "items": message, "examples": [[_QUESTION]]}


_QUESTION = {"role": "user", "content": "What is an ADR?"}
_INPUT = {"anyOf": [{"type": "string"}, _messages(*INPUT_PARTS)], "examples": [_QUESTION["content"]]}
_Tokens = Annotated[int | None, Field(ge=1, le=MAX_TOKENS)]
#: Accept enumerations as text, although the model is strict: JSON has no enumerations.
_WORD = Field(strict=False)


class Body(BaseModel):
    """Base class for request bodies and for the objects inside them; a null field counts as missing."""

    model_config = ConfigDict(strict=True, frozen=True)


class EscalationBody(Body):
    """A request's choice of what to do after all attempts have failed; missing fields follow the settings."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    runs: int | None = None
    human: bool | None = None
    timeout_seconds: float | None = None
    default: str | None = None


class StreamOptions(Body):
    """OpenAI's options of a streamed response, such as whether the stream ends with the usage."""

    include_usage: bool | None = None


class Wishes(Body):
    """Base class for the bodies of requests for an answer, with the fields that these bodies share."""

    SAID: ClassVar[str]
    PARTS: ClassVar[tuple[str, ...]]

    model: Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1, "examples": ["scripted"]})] = None
    session_id: str | None = Field(None, pattern=f"^[ -~]{{1,{MAX_ID_CHARS}}}$", description=_ID)
    validators: list[Any] | None = Field(None, description="a list of names")
    max_attempts: int | None = Field(None, ge=1, le=MAX_ATTEMPTS)
    deadline_seconds: float | None = Field(None, ge=1, le=MAX_DEADLINE_SECONDS)
    token_budget: int | None = Field(None, ge=0, le=MAX_TOKENS)
    cost_budget_usd: float | None = Field(None, ge=0, le=MAX_COST_USD)
    policy: dict[str, list[str]] | None = Field(None, description=_POLICY)
    escalation: EscalationBody | None = None
    double_text: Annotated[DoubleText, _WORD] | None = None
    priority: Annotated[Priority, _WORD] | None = None
    locale: Locale | None = None
    stream: bool | None = None
    stream_mode: Annotated[StreamMode, _WORD] | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=1)
    max_tokens: _Tokens = None
    max_completion_tokens: _Tokens = None
    max_output_tokens: _Tokens = None
    response_format: Any = None


class TurnBody(Wishes):
    """The JSON body of a request that submits a turn or a chat conversation.

    For ``/v1/turns`` and ``/v1/chat/completions``.
    """

    SAID: ClassVar[str] = "messages"
    PARTS: ClassVar[tuple[str, ...]] = ("text",)

    model_config = ConfigDict(json_schema_extra={"required": ["model", "messages"]})

    messages: Annotated[Any, WithJsonSchema(_messages("text"))] = None


class ResponseBody(Wishes):
    """The JSON body of a request to OpenAI's Responses API (``/v1/responses``)."""

    SAID: ClassVar[str] = "input"
    PARTS: ClassVar[tuple[str, ...]] = INPUT_PARTS

    model_config = ConfigDict(json_schema_extra={"required": ["model", "input"]})

    input: Annotated[Any, WithJsonSchema(_INPUT)] = None
    instructions: str | None = None
    background: bool | None = None
    metadata: (
        dict[Annotated[str, Field(max_length=_KEY_CHARS)], Annotated[str, Field(max_length=_VALUE_CHARS)]] | None
    ) = Field(None, max_length=_PAIRS, description=_METADATA)
    store: bool | None = None
    text: dict[str, Any] | None = None


class DecisionBody(Body):
    """The JSON body of a person's decision on a suspended turn.

    For ``/v1/inbox/{turn_id}/decision``; ``by`` is an older name of the field ``for``.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["decision"]})

    decision: Annotated[str | None, WithJsonSchema({"enum": list(DecisionKind)})] = None
    note: str | None = None
    text: str | None = None
    decision_id: str | None = None
    suspended_at: float | None = None
    name: str | None = Field(None, alias="for")
    by: str | None = None


_B = TypeVar("_B", bound=Body)


def read(model: type[_B], body: Mapping[str, Any], problems: Problems | None = None) -> _B:
    """Parse a request body into its model and return the model; invalid fields raise or are collected.

    ``problems`` collects the errors, and invalid fields then count as missing. Without ``problems``, raises
    ``ApiError``: 400 with every invalid field, its value and the allowed values.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found, schema = problems or Problems(), schema_of(model)
        wrong: dict[int | str, None] = {}
        for each in error.errors(include_url=False, include_context=False):
            field = each["loc"][0]
            if field not in wrong or "description" not in schema["properties"].get(field, {}):
                found.add(_refused(schema, each["loc"], each["type"], each["input"], body))
            wrong[field] = None
    if problems is None:
        found.end()
    return model.model_validate({name: value for name, value in body.items() if name not in wrong})


@cache
def schema_of(model: type[Body]) -> dict[str, Any]:
    """Return the JSON Schema of a body model with all references inlined."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inlined(parts[node["$ref"].rpartition("/")[2]])
        return {name: inlined(value) for name, value in node.items()}

    return dict(inlined(schema))


def operation(model: type[Body]) -> dict[str, Any]:
    """Return the OpenAPI entry of a route that takes a body of this model."""
    schema = schema_of(model)
    required = bool(schema.get("required"))
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _refused(
    schema: dict[str, Any], trail: tuple[int | str, ...], kind: str, given: Any, body: Mapping[str, Any]
) -> ApiError:
    name = ""
    for step in trail:
        within = _plain(schema)
        if kind == "extra_forbidden" and step == trail[-1]:
            known = ", ".join(within["properties"])
            message = f"{name + '.' if name else ''}{shown_text(str(step), 40)}: no such field; known: {known}"
            return bad_request(message, param=shown_text(f"{name}.{step}".removeprefix("."), 80))
        name = f"{name}[{step}]" if isinstance(step, int) else f"{name}.{step}".removeprefix(".")
        schema = within.get("properties", {}).get(step) or within.get("items") or within["additionalProperties"]
        if "description" in schema and "properties" not in schema:
            given, kind = body[str(trail[0])], kind if step == trail[-1] else ""
            break
    field = _plain(schema)
    allowed = schema.get("description") or _allowed(field)
    is_kind = field.get("type") in _KINDS and not {"enum", "pattern"} & set(field)
    code = "invalid_type" if is_kind and kind.endswith("_type") else "invalid_value"
    return bad_request(f"{name}: must be {allowed}; got {shown(given)}", param=name, code=code)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return dict(next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema))


def _allowed(field: dict[str, Any]) -> str:
    if "enum" in field:
        return f"one of {', '.join(field['enum'])}"
    noun = {"integer": "a whole number", "number": "a number"}.get(field["type"])
    if noun is None:
        return _KINDS[field["type"]]
    if "minimum" not in field:
        return noun
    low, high = field["minimum"], field["maximum"]
    return f"{low}" if low == high else f"{noun} from {low:g} to {high:.15g}"


def read_model(model: Any, settings: Settings) -> str:
    """Return the model that a request names, after checking that the name is valid and configured.

    Raises ``ApiError``: 400 if the value is not a name; 404 ``model_not_found``.
    """
    if not isinstance(model, str) or not model:
        allowed = ", ".join(settings.models)
        raise bad_request(f"model: must be one of {allowed}; got {shown(model)}", param="model")
    return known_model(model, settings)


def known_model(model: str, settings: Settings) -> str:
    """Return the model's name if the model is configured, otherwise raise an error.

    Raises ``ApiError``: 404 ``model_not_found``.
    """
    if model not in settings.models:
        message = f"the model {shown(model)} does not exist here; there is: {', '.join(settings.models)}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return model


def read_validators(names: Sequence[Any], offered: Sequence[str], problems: Problems) -> tuple[str, ...]:
    """Return the requested validators without duplicates; unknown names are added to ``problems`` as errors."""
    for index, name in enumerate(names):
        if name not in offered:
            wrong = not_offered(name, offered) if isinstance(name, str) else f"must be a name; got {shown(name)}"
            param = f"validators[{index}]"
            problems.add(bad_request(f"{param}: {wrong}", param=param, code="unknown_validator"))
    return tuple(dict.fromkeys(name for name in names if name in offered))


def read_escalation(wanted: EscalationBody, settings: Settings) -> Escalation:
    """Return the escalation that a request asks for; missing fields follow the settings.

    Raises ``ApiError``: 400 ``model_not_found``, so that a key reaches only its own models.
    """
    if wanted.model and wanted.model not in settings.models:
        message = f"escalation.model: unknown model {shown(wanted.model)}; known: {', '.join(settings.models)}"
        raise bad_request(message, param="escalation.model", code="model_not_found")
    return replace(escalation_of(settings), **wanted.model_dump(exclude_none=True))

"""Reads the form of answer that a request demands, and refuses parameters that an agent's answer cannot honour."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from api_client.contract.answer_format import MARKDOWN_RULES, AnswerFormat, UnusableSchema, check_schema
from api_client.web.errors import ApiError, Problems, bad_request, display_value, printable_text

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWN_TOOLS = "the agent brings its own tools; for an answer as JSON use response_format or text.format with json_schema"
_NO_LENGTH = "the length of an agent's answer cannot be cut; limit the turn by token_limit"
_NO_LOGPROBS = "agents report no probabilities"


def _is_set(value: Any) -> bool:
    return value not in (None, False, 0, "", [], {})


def _is_choice(value: Any) -> bool:
    return value not in (None, "none", "auto")


#: Parameters whose loss would change the answer -> whether a value asks for something, and why it is refused.
_REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "tools": (_is_set, _OWN_TOOLS),
    "functions": (_is_set, _OWN_TOOLS),
    "tool_choice": (_is_choice, _OWN_TOOLS),
    "function_call": (_is_choice, _OWN_TOOLS),
    "web_search_options": (lambda value: value is not None, _OWN_TOOLS),
    "stop": (_is_set, "an agent's answer has no stop texts"),
    "max_tokens": (_is_set, _NO_LENGTH),
    "max_completion_tokens": (_is_set, _NO_LENGTH),
    "max_output_tokens": (_is_set, _NO_LENGTH),
    "max_tool_calls": (_is_set, "limit the turn by token_limit"),
    "logprobs": (_is_set, _NO_LOGPROBS),
    "top_logprobs": (_is_set, _NO_LOGPROBS),
    "logit_bias": (_is_set, "agents have no such setting"),
    "audio": (_is_set, "answers are texts"),
    "modalities": (lambda value: value not in (None, [], ["text"]), "answers are texts"),
}


def refuse_parameters(body: Mapping[str, Any], problems: Problems, *, from_open_webui: bool) -> None:
    """Add a problem for each parameter that asks for something an agent cannot do."""
    for name, (asks, why) in _REFUSED.items():
        if name in body and asks(body[name]) and not (from_open_webui and why is _OWN_TOOLS):
            problems.add(unsupported_parameter(name, why))


def select_for_json(validators: Sequence[str], named: Sequence[Any] | None, problems: Problems) -> tuple[str, ...]:
    """Return the validators that can check an answer that is only JSON.

    Add a problem for each rule about Markdown that the request itself names; ``named`` is its list, or None.
    """
    for index, name in enumerate(named or ()):
        if isinstance(name, str) and name in MARKDOWN_RULES:
            message = f"validators[{index}]: {name} checks Markdown, but the request asks for an answer of JSON alone"
            problems.add(bad_request(message, param=f"validators[{index}]"))
    return tuple(name for name in validators if name not in MARKDOWN_RULES)


def unsupported_parameter(field: str, instead: str) -> ApiError:
    """Build the error for an unsupported parameter. ``instead`` says why, or what to use instead."""
    return bad_request(f"{field}: is not supported here; {instead}", param=field, code="unsupported_parameter")


def read_response_format(given: Any, field: str, problems: Problems) -> AnswerFormat | None:
    """Return the JSON format that a request demands for its answer, or None for text.

    ``field`` is ``response_format`` of chat completions, or ``text.format`` of the Responses API, whose members stand
    one level higher.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return AnswerFormat({"type": "object"}, {"type": "json_object"})
    if kind != "json_schema":
        message = f"{field}: must be an object with the type text, json_object or json_schema; got"
        problems.add(bad_request(f"{message} {display_value(given)}", param=field))
        return None
    place = field if field == "text.format" else f"{field}.json_schema"
    found = given if field == "text.format" else given.get("json_schema")
    if not isinstance(found, dict):
        problems.add(bad_request(f"{place}: must be an object; got {display_value(found)}", param=place))
        return None
    name, strict = found.get("name"), found.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = f"{place}.name: must be 1 to 64 letters, digits, - and _; got {display_value(name)}"
        problems.add(bad_request(message, param=f"{place}.name"))
    if not (strict is None or isinstance(strict, bool)):
        message = f"{place}.strict: must be true or false; got {display_value(strict)}"
        problems.add(bad_request(message, param=f"{place}.strict", code="invalid_type"))
    try:
        check_schema(found.get("schema"), strict=strict is True)
    except (UnusableSchema, RecursionError) as error:
        path = error.path if isinstance(error, UnusableSchema) else "schema"
        text = str(error) if isinstance(error, UnusableSchema) else "schema: nested too deeply"
        param = printable_text(f"{place}.{path}", 240)
        problems.add(bad_request(printable_text(f"{place}.{text}", 500), param=param))
        return None
    description = found.get("description")
    shown = {"type": "json_schema", "name": name, "schema": found["schema"], "strict": strict is True}
    return AnswerFormat(found["schema"], shown | ({"description": description} if description else {}))

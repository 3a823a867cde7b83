"""Reads the body of ``/v1/responses``.

Fields that change the meaning of the answer (tools, a stored conversation, a schema) are rejected; fields that only
tune a model (temperature, reasoning effort, ...) are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from api_client.contract.settings import Settings
from api_client.policies import CallerPolicy
from api_client.web.bodies.chat_request import ChatRequest, RequestContext, build_chat_request
from api_client.web.bodies.models import ResponseBody, read_model_body
from api_client.web.errors import ApiError, bad_request, display_value
from api_client.web.language import detect_body_language

#: Fields that must be empty -> what to do instead.
_UNSUPPORTED_FIELDS = {
    "previous_response_id": "send the whole conversation in input",
    "conversation": "send the whole conversation in input, and name it by the field session_id",
    "prompt": "send the text itself in input",
    "tools": "the agent brings its own tools",
    "stream_mode": "a response shows the accepted answer only",
}
#: Keys of the turn's metadata from which the response is rebuilt when it is read later.
BACKGROUND, METADATA, INSTRUCTIONS = "background", "metadata", "instructions"


def read_response_request(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallerPolicy | None = None
) -> ChatRequest:
    """Parse a chat request from the body and headers of a request to ``/v1/responses``.

    Raises ``ApiError`` with all problems: 400 with the field's name, 404 for an unknown model.
    """
    by = RequestContext(headers, settings, owner, policy)
    problems = by.problems
    for name, instead in _UNSUPPORTED_FIELDS.items():
        if body.get(name) not in (None, [], "validated"):
            problems.add(_make_unsupported_error(name, instead))
    if body.get("store") is False:
        problems.add(
            _make_unsupported_error("store", "every turn is stored, for HELIX_RETENTION_SECONDS after its end")
        )
    wished = read_model_body(ResponseBody, {name: body[name] for name in body if name != "stream_mode"}, problems)
    chosen = (wished.text or {}).get("format")
    if not (chosen is None or isinstance(chosen, dict)):
        message = f"text.format: must be an object; got {display_value(chosen)}"
        problems.add(bad_request(message, param="text.format", code="invalid_type"))
    elif chosen and chosen.get("type") != "text":
        problems.add(_make_unsupported_error("text.format", "only the type text is supported"))
    if wished.instructions and len(wished.instructions) > (most := settings.max_message_chars):
        message = f"instructions: {len(wished.instructions)} characters, but at most {most} are allowed"
        problems.add(bad_request(message, param="instructions", code="content_too_long"))
    said = [{"role": "user", "content": wished.input}] if isinstance(wished.input, str) else wished.input
    for index, item in enumerate(said if isinstance(said, list) else ()):
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        if kind != "message":
            name = f"input[{index}].type"
            problems.add(bad_request(f"{name}: only messages are supported; got {display_value(kind)}", param=name))
    notes = {
        BACKGROUND: "true" if wished.background else "",
        METADATA: json.dumps(wished.metadata or {}, ensure_ascii=False),
        INSTRUCTIONS: "true" if wished.instructions is not None else "",
    }
    return build_chat_request(wished, said, detect_body_language(body), by, system=wished.instructions, notes=notes)


def _make_unsupported_error(field: str, instead: str) -> ApiError:
    return bad_request(f"{field}: is not supported here; {instead}", param=field, code="unsupported_parameter")

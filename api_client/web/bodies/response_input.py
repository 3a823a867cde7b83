"""Reads the body of ``/v1/responses``. Fields that change the answer's meaning are rejected, tuning fields ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from api_client.contract.settings import Settings
from api_client.policies.policy_files import CallerPolicy
from api_client.web.bodies.chat_request import ChatRequest, RequestContext, build_chat_request
from api_client.web.bodies.models import ResponseBody, read_model_body
from api_client.web.bodies.response_format import read_response_format, unsupported_parameter
from api_client.web.errors import bad_request, display_value
from api_client.web.language import detect_body_language

#: Fields that must be empty -> what to do instead.
_UNSUPPORTED_FIELDS = {
    "previous_response_id": "send the whole conversation in input",
    "conversation": "send the whole conversation in input, and name it by the field session_id",
    "prompt": "send the text itself in input",
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
    by = RequestContext(headers, settings, owner, policy, body=body)
    problems = by.problems
    for name, instead in _UNSUPPORTED_FIELDS.items():
        if body.get(name) not in (None, [], "validated"):
            problems.add(unsupported_parameter(name, instead))
    if body.get("store") is False:
        problems.add(unsupported_parameter("store", "every turn is stored, for HELIX_RETENTION_SECONDS after its end"))
    if isinstance(more := body.get("include"), list) and any("logprobs" in str(each) for each in more):
        problems.add(unsupported_parameter("include", "agents report no probabilities"))
    wished = read_model_body(ResponseBody, {name: body[name] for name in body if name != "stream_mode"}, problems)
    chosen = read_response_format((wished.text or {}).get("format"), "text.format", problems)
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
    language = detect_body_language(body)
    return build_chat_request(wished, said, language, by, answer_format=chosen, system=wished.instructions, notes=notes)

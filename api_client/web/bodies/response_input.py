"""Reading the body of ``/v1/responses``: the part of OpenAI's Responses API that a turn can keep its word on.

What would change the answer's meaning if it were ignored (tools, a stored conversation, a schema) is refused by name;
what only tunes a model (temperature, reasoning effort, ...) means nothing to an agent and is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.datastructures import Headers

from api_client.contract.settings import Settings
from api_client.policies.files import CallersPolicy
from api_client.web.bodies.ask import Ask, ask_for
from api_client.web.bodies.conversation import Conversation, ConversationLimits, PartRules, read_list
from api_client.web.bodies.models import INPUT_PARTS, ResponseBody, read
from api_client.web.errors import ApiError, bad_request, shown
from api_client.web.language import spoken_in

#: Fields that may be there only when they ask for nothing, and what to do instead.
_REFUSED = {
    "previous_response_id": "send the whole conversation in input",
    "conversation": "send the whole conversation in input, and name it by the field session_id",
    "prompt": "send the text itself in input",
    "tools": "the agent brings its own tools",
    "stream_mode": "a response shows the accepted answer only",
}
#: Notes in the turn's metadata, from which the response is made again when it is read later.
BACKGROUND, METADATA, INSTRUCTIONS = "background", "metadata", "instructions"


def read_response_ask(
    body: Mapping[str, Any], headers: Headers, settings: Settings, owner: str, policy: CallersPolicy | None = None
) -> Ask:
    """Read a turn from the body of a response, as ``read_ask``.

    Raises:
        ApiError: 400 with the field's name, or 404 for an unknown model.
    """
    for field, instead in _REFUSED.items():
        if body.get(field) not in (None, [], "validated"):
            raise _unsupported(field, instead)
    if body.get("store") is False:
        raise _unsupported("store", "every turn is stored, for HELIX_RETENTION_SECONDS after its end")
    wished = read(ResponseBody, body)
    if wished.text:
        _check_format(wished.text)
    ask = ask_for(wished, partial(_read_input, wished), spoken_in(body), headers, settings, owner, policy)
    return replace(ask, request=replace(ask.request, metadata=ask.request.metadata | _notes(wished)))


def _read_input(wished: ResponseBody, limits: ConversationLimits, rules: PartRules, go_on: str) -> Conversation:
    given, instructions = wished.input, wished.instructions
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        if kind != "message":
            name = f"input[{index}].type"
            raise bad_request(f"{name}: only messages are supported; got {shown(kind)}", param=name)
    said = read_list(items, "input", limits, replace(rules, text=INPUT_PARTS), go_on)
    if instructions is None:
        return said
    if len(instructions) > limits.chars:
        message = f"instructions: {len(instructions)} characters, but at most {limits.chars} are allowed"
        raise bad_request(message, param="instructions", code="content_too_long")
    return replace(said, messages=({"role": "system", "content": instructions}, *said.messages))


def _notes(wished: ResponseBody) -> dict[str, str]:
    return {
        BACKGROUND: "true" if wished.background else "",
        METADATA: json.dumps(wished.metadata or {}, ensure_ascii=False),
        INSTRUCTIONS: "true" if wished.instructions is not None else "",
    }


def _check_format(text: dict[str, Any]) -> None:
    chosen = text.get("format")
    if not (chosen is None or isinstance(chosen, dict)):
        raise bad_request(
            f"text.format: must be an object; got {shown(chosen)}", param="text.format", code="invalid_type"
        )
    if chosen and chosen.get("type") != "text":
        raise _unsupported("text.format", "only the type text is supported")


def _unsupported(field: str, instead: str) -> ApiError:
    return bad_request(f"{field}: is not supported here; {instead}", param=field, code="unsupported_parameter")

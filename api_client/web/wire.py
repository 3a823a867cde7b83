"""Encodes the relay's output: JSON on one line, and frames of server-sent events."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from api_client.contract.turn import Turn

#: JSON escapes everything below U+0020; some readers take these three as line ends too.
_LINE_ENDS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}

DONE = b"data: [DONE]\n\n"
#: A comment that keeps proxies and clients from giving up on a silent stream.
PING = b": ping\n\n"

SSE_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
#: Declared on every streaming route; without it the OpenAPI document would promise JSON.
SSE_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def encode_json(value: Any) -> bytes:
    """Encode a value as one line of JSON in UTF-8. Lone surrogates become JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if not text.isascii():
        for line_end, escape in _LINE_ENDS.items():  # much faster than translate(), which looks at every letter
            text = text.replace(line_end, escape)
    return text.encode("utf-8", "backslashreplace")


def data_frame(value: Any) -> bytes:
    """Encode a value as a server-sent event without a name."""
    return b"data: " + encode_json(value) + b"\n\n"


def event_frame(name: str, value: Any, event_id: str = "") -> bytes:
    """Encode a value as a server-sent event with a name, and with an id for resuming the stream.

    ``name`` and ``event_id`` must not contain line ends.
    """
    head = f"id: {event_id}\nevent: {name}\n" if event_id else f"event: {name}\n"
    return head.encode() + data_frame(value)


def turn_object(turn: Turn) -> dict[str, Any]:
    """Return a turn as the API's JSON object."""
    return {"object": "turn", **turn.to_dict()}


class JSONResponse(Response):
    """A response whose content is encoded as JSON on one line."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_json(content)

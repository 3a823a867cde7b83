"""Encode the relay's output: JSON that no line splitter can break, and the frames of an SSE stream.

Some clients end lines at further characters than CR and LF, so every ``data`` line holds exactly one JSON text
without any of them.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from api_client.contract.turn import Turn

#: JSON escapes everything below U+0020; some readers take these three as line ends too.
_LINE_ENDS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}

#: The end of a chat completion stream.
DONE = b"data: [DONE]\n\n"
#: A comment that keeps proxies and clients from giving up on a silent stream.
PING = b": ping\n\n"

SSE_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
#: Declared on every streaming route; without it the OpenAPI document would promise JSON.
SSE_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def encode(value: Any) -> bytes:
    """Encode ``value`` as one line of JSON in UTF-8. A lone surrogate becomes its JSON escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if not text.isascii():
        for line_end, escape in _LINE_ENDS.items():  # much faster than translate(), which looks at every letter
            text = text.replace(line_end, escape)
    return text.encode("utf-8", "backslashreplace")


def data_frame(value: Any) -> bytes:
    """Return one event with ``value`` as its data."""
    return b"data: " + encode(value) + b"\n\n"


def event_frame(name: str, value: Any, event_id: str = "") -> bytes:
    """Return one named event. With an id, a reader can reconnect where it stopped (``Last-Event-ID``).

    ``name`` and ``event_id`` must not contain line ends.
    """
    head = f"id: {event_id}\nevent: {name}\n" if event_id else f"event: {name}\n"
    return head.encode() + data_frame(value)


def turn_object(turn: Turn) -> dict[str, Any]:
    """Return a turn as the API shows it."""
    return {"object": "turn", **turn.to_dict()}


class JSON(Response):
    """A JSON response, encoded like everything else that leaves the relay."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the encoded body."""
        return encode(content)

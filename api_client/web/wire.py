"""The relay's output as bytes: JSON that no line splitter can break, and the frames of an SSE stream.

A Server-Sent Event ends where its line ends, and some clients split lines at characters beyond CR and LF. So every
``data`` line holds exactly one JSON text without any of them.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from api_client.contract.turn import Turn

#: JSON itself escapes everything below U+0020; these three are line ends to some readers.
_LINE_ENDS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}

#: The end of a chat completion stream.
DONE = b"data: [DONE]\n\n"
#: A comment: says nothing, and keeps proxies and clients from giving up on a silent stream.
PING = b": ping\n\n"

SSE_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
#: Declared on every route that streams; without it the OpenAPI document would promise JSON.
SSE_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def encode(value: Any) -> bytes:
    """``value`` as one line of JSON in UTF-8. A lone surrogate becomes its JSON escape instead of an error."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if not text.isascii():
        for line_end, escape in _LINE_ENDS.items():  # far faster than translate(), which looks at every letter
            text = text.replace(line_end, escape)
    return text.encode("utf-8", "backslashreplace")


def data_frame(value: Any) -> bytes:
    """One event whose data is ``value``."""
    return b"data: " + encode(value) + b"\n\n"


def event_frame(name: str, value: Any, event_id: str = "") -> bytes:
    """One named event; with an id, a reader that comes back can say where it stopped (``Last-Event-ID``).

    ``name`` and ``event_id`` are our own words: neither may hold a line end.
    """
    head = f"id: {event_id}\nevent: {name}\n" if event_id else f"event: {name}\n"
    return head.encode() + data_frame(value)


def turn_object(turn: Turn) -> dict[str, Any]:
    """A turn as the API shows it."""
    return {"object": "turn", **turn.to_dict()}


class JSON(Response):
    """A JSON response, encoded like everything else that leaves the relay."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return encode(content)

"""The filter of a list of turns in an address: the same words for ``GET /v1/turns`` and the page ``/turns``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from starlette.responses import Response

from api_client.contract.turn import Turn, owner_named
from api_client.figures.metrics import seconds_of
from api_client.index import SORTS, STATUSES, Cursor, Search
from api_client.web.errors import bad_request, shown

#: The words of an address that narrow a list, in the order in which they are shown.
FILTERS = ("status", "model", "flow", "session", "owner", "rule", "since", "until", "text", "lost", "sort")
#: Words that an address may have besides: which page of a list, and the box of the page `/turns`.
_OTHERS = ("limit", "cursor", "turn")
_LONGEST = 300


def search_of(asked: Mapping[str, str], owner: str | None) -> Search:
    """The search that an address asks for; ``owner`` is whose turns the asker may see, None for everybody's.

    Raises ``ApiError``: 400, a word of it is not known or cannot be read.
    """
    if unknown := next((word for word in asked if word not in (*FILTERS, *_OTHERS)), ""):
        known = f"no such filter; there are {', '.join(FILTERS)}"
        raise bad_request(f"{shown(unknown)}: {known}", param=unknown[:80], code="invalid_parameter")
    given = {name: asked.get(name, "").strip() for name in FILTERS}
    for name, value in given.items():
        if len(value) > _LONGEST:
            raise bad_request(f"{name}: must be {_LONGEST} characters at most", param=name)
    statuses = tuple(filter(None, (word.strip() for word in given["status"].split(","))))
    if wrong := [word for word in statuses if word not in STATUSES]:
        raise bad_request(f"status: must be of {', '.join(STATUSES)}; got {shown(wrong[0])}", param="status")
    if given["sort"] not in {"", *SORTS}:
        raise bad_request(f"sort: must be one of {', '.join(SORTS)}; got {shown(given['sort'])}", param="sort")
    if given["lost"] not in {"", "0", "1", "false", "true"}:
        raise bad_request(f"lost: must be 0 or 1; got {shown(given['lost'])}", param="lost")
    return Search(
        owner=owner_named(given["owner"]) if owner is None else owner,
        session_id=given["session"],
        model=given["model"],
        flow=given["flow"],
        statuses=statuses,
        lost=given["lost"] in {"1", "true"},
        since=_moment("since", given["since"]),
        until=_moment("until", given["until"]),
        rule=given["rule"],
        text=given["text"],
        sort=given["sort"] or SORTS[0],
    )


def place_of(text: str) -> Cursor | None:
    """The place in a list that a cursor names; None for its beginning.

    Raises ``ApiError``: 400, this is not a cursor.
    """
    try:
        return Cursor.parse(text) if text else None
    except ValueError:
        message = f"cursor: must be the `next` of a page; got {shown(text)}"
        raise bad_request(message, param="cursor") from None


def _moment(name: str, text: str) -> float:
    """A moment (seconds since the epoch): a span such as 30m or 7d before now, or ISO 8601. 0 for none."""
    if not text:
        return 0.0
    try:
        return time.time() - seconds_of(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{name}: must be a span (90s, 30m, 1h, 7d, 2w) or a time (2026-11-22T03:00Z); got {shown(text)}"
        raise bad_request(message, param=name) from None
    return at.timestamp()


# The relay's output as bytes: JSON that no line splitter can break, and the frames of an SSE stream. A Server-Sent
# Event ends where its line ends, and some clients split lines at characters beyond CR and LF. So every ``data`` line
# holds exactly one JSON text without any of them.

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

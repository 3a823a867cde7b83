"""Parses the filters of a list of turns from a URL, for ``GET /v1/turns`` and the page ``/turns``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

from api_client.contract.owners import parse_owner
from api_client.contract.turn_labels import LISTED
from api_client.figures.time_spans import parse_time_span
from api_client.index.search import SORTS, STATUSES, Cursor, Search
from api_client.web.errors import bad_request, display_value

FILTERS = ("status", "model", *LISTED, "session", "owner", "rule", "since", "until", "text", "lost", "sort")
_OTHER_PARAMETERS = ("limit", "cursor", "turn")
_MAX_CHARS = 300


def parse_search(asked: Mapping[str, str], owner: str | None) -> Search:
    """Build a search for turns from the query parameters of a URL.

    ``owner`` is the owner whose turns the caller may see, None for all owners. Raises ``ApiError``: 400 if a parameter
    is unknown or invalid.
    """
    if unknown := next((word for word in asked if word not in (*FILTERS, *_OTHER_PARAMETERS)), ""):
        known = f"no such filter; there are {', '.join(FILTERS)}"
        raise bad_request(f"{display_value(unknown)}: {known}", param=unknown[:80], code="invalid_parameter")
    given = {name: asked.get(name, "").strip() for name in FILTERS}
    for name, value in given.items():
        if len(value) > _MAX_CHARS:
            raise bad_request(f"{name}: must be {_MAX_CHARS} characters at most", param=name)
    statuses = tuple(filter(None, (word.strip() for word in given["status"].split(","))))
    if wrong := [word for word in statuses if word not in STATUSES]:
        raise bad_request(f"status: must be of {', '.join(STATUSES)}; got {display_value(wrong[0])}", param="status")
    if given["sort"] not in {"", *SORTS}:
        raise bad_request(f"sort: must be one of {', '.join(SORTS)}; got {display_value(given['sort'])}", param="sort")
    if given["lost"] not in {"", "0", "1", "false", "true"}:
        raise bad_request(f"lost: must be 0 or 1; got {display_value(given['lost'])}", param="lost")
    return Search(
        owner=parse_owner(given["owner"]) if owner is None else owner,
        session_id=given["session"],
        model=given["model"],
        labels={name: given[name] for name in LISTED if given[name]},
        statuses=statuses,
        lost=given["lost"] in {"1", "true"},
        since=_parse_time("since", given["since"]),
        until=_parse_time("until", given["until"]),
        rule=given["rule"],
        text=given["text"],
        sort=given["sort"] or SORTS[0],
    )


def parse_cursor(text: str) -> Cursor | None:
    """Parse a cursor from a URL; an empty string means the start of the list. Raises ``ApiError`` (400)."""
    try:
        return Cursor.parse(text) if text else None
    except ValueError:
        message = f"cursor: must be the `next` of a page; got {display_value(text)}"
        raise bad_request(message, param="cursor") from None


def _parse_time(name: str, text: str) -> float:
    """Parse a time span before now (30m, 7d) or an ISO 8601 time into seconds since the epoch, or '' into 0."""
    if not text:
        return 0.0
    try:
        return time.time() - parse_time_span(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):  # no time, or one too early for a number of seconds
        message = (
            f"{name}: must be a span (90s, 30m, 1h, 7d, 2w) or a time (2026-11-22T03:00Z); got {display_value(text)}"
        )
        raise bad_request(message, param=name) from None

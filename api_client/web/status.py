"""Progress lines for Open WebUI: a fixed whitelist of sentences over a turn's events.

Open WebUI runs what some event types carry (``execute`` is JavaScript in the reader's browser). So a status event is
built here from our own words and numbers; text from elsewhere only fills a gap in a sentence, cleaned and cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from api_client.contract.events import Event
from api_client.web.words import say

MAX_CHARS = 200
_REASON_CHARS = 120

Data = dict[str, Any]


def status_of(event: Event, locale: str) -> dict[str, Any] | None:
    """The status event that says what ``event`` means to a reader; None when it is worth no line."""
    words = _LINES.get(event.kind)
    text = words(event.data, locale) if words else ""
    if not text:
        return None
    return {"type": "status", "data": {"description": text[:MAX_CHARS], "done": event.final}}


def _number(data: Data, name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else 0


def _plain(text: object) -> str:
    """One short line without controls or angle brackets, whatever came."""
    words = " ".join(str(text or "").split())
    clean = "".join(letter for letter in words if letter.isprintable() and letter not in "<>")
    return clean if len(clean) <= _REASON_CHARS else f"{clean[: _REASON_CHARS - 1]}…"


def _queued(data: Data, locale: str) -> str:
    position = _number(data, "position")
    return say("queued_behind", locale, position=position) if position else say("queued", locale)


def _completed(data: Data, locale: str) -> str:
    return say("checking", locale) if data.get("verdict") == "complete" else ""


def _retrying(data: Data, locale: str) -> str:
    counts = {"number": _number(data, "attempt") - 1, "allowed": _number(data, "max_attempts") - 1}
    reason = _plain(data.get("reason"))
    return say("retrying_because", locale, reason=reason, **counts) if reason else say("retrying", locale, **counts)


def _mended(data: Data, locale: str) -> str:
    changes = data.get("changes")
    text = _plain("; ".join(map(str, changes)) if isinstance(changes, list) else "")
    return say("mended", locale, changes=text) if text else ""


def _finished(data: Data, locale: str) -> str:
    return say("done" if data.get("success") else "not_done", locale)


_LINES: dict[str, Callable[[Data, str], str]] = {
    "turn.queued": _queued,
    "attempt.started": lambda _, locale: say("started", locale),
    "attempt.completed": _completed,
    "attempt.lost": lambda _, locale: say("lost", locale),
    "turn.retrying": _retrying,
    "turn.fallback": lambda _, locale: say("fallback", locale),
    "turn.mended": _mended,
    "turn.stopping": lambda _, locale: say("stopping", locale),
    "turn.finished": _finished,
}

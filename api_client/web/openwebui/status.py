"""Progress lines for Open WebUI: a fixed whitelist of sentences over a turn's events.

Open WebUI runs what some event types carry (``execute`` is JavaScript in the reader's browser). So a status event is
built here from our own words and numbers; text from elsewhere only fills a gap in a sentence, cleaned and cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from api_client.contract.events import Event
from api_client.web.streaming.words import say

MAX_CHARS = 200
_REASON_CHARS = 120

Data = dict[str, Any]

#: Code of an issue -> the sentence that says it in plain words.
_WHY = {
    "MISSING_STEP_MARKER": "why_step",
    "INVALID_STEP": "why_step",
    "MISSING_ADR_FIELD": "why_adr",
    "EMPTY_ADR_FIELD": "why_adr",
    "MISSING_ADR_SECTION": "why_adr",
    "EMPTY_ADR_SECTION": "why_adr",
    "INSUFFICIENT_CRITERIA": "why_adr",
    "MISSING_YAML_HEADER": "why_header",
    "INVALID_YAML": "why_header",
    "INVALID_HEADER": "why_header",
    "DUPLICATE_KEY": "why_header",
    "YAML_TOO_COMPLEX": "why_header",
    "FILE_NOT_FOUND": "why_file",
    "DOC_NOT_FOUND": "why_file",
    "DELETE_NOT_FOUND": "why_file",
    "NOT_A_FILE": "why_file",
    "INVALID_PATH": "why_file",
    "OUTSIDE_ROOT": "why_file",
    "ANSWER_TOO_LONG": "why_long",
    "INCOMPLETE_RESPONSE": "why_cut_off",
}


#: Name of a tool -> the words for what it does. What an agent calls its tools is never shown.
_TOOLS = {
    "Read": "tool_read",
    "Glob": "tool_search",
    "Grep": "tool_search",
    "LS": "tool_search",
    "Write": "tool_write",
    "Edit": "tool_write",
    "MultiEdit": "tool_write",
    "NotebookEdit": "tool_write",
    "Bash": "tool_run",
    "WebSearch": "tool_web",
    "WebFetch": "tool_web",
    "Task": "tool_agent",
    "Agent": "tool_agent",
}


def status_of(event: Event, locale: str, pages: str = "") -> dict[str, Any] | None:
    """The status event that says what ``event`` means to a reader; None when it is worth no line.

    ``pages`` is the address of the relay's pages; whoever has to decide on a parked turn is sent there.
    """
    words = _LINES.get(event.kind)
    text = words(event.data, locale) if words else ""
    if event.kind == "turn.parked":
        turn_id = _plain(event.data.get("turn_id"))
        text = say("parked", locale, where=f"{pages}/turns/{turn_id}" if pages else f"turns inbox show {turn_id}")
    if not text:
        return None
    return {"type": "status", "data": {"description": text[:MAX_CHARS], "done": event.final}}


def _number(data: Data, name: str) -> int:
    value = data.get(name)
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _plain(text: object) -> str:
    """One short line without controls or angle brackets, whatever came."""
    words = " ".join(str(text or "").split())
    clean = "".join(letter for letter in words if letter.isprintable() and letter not in "<>")
    return clean if len(clean) <= _REASON_CHARS else f"{clean[: _REASON_CHARS - 1]}…"


def _queued(data: Data, locale: str) -> str:
    position = _number(data, "position")
    return say("queued_behind", locale, position=position) if position else say("queued", locale)


def _tool(data: Data, locale: str) -> str:
    return say("tool", locale, what=say(_TOOLS.get(str(data.get("name")), "tool_other"), locale))


def _completed(data: Data, locale: str) -> str:
    return say("checking", locale) if data.get("verdict") == "complete" else ""


def _retrying(data: Data, locale: str) -> str:
    if data.get("reason") == "transient":
        return say("waiting", locale, seconds=_number(data, "delay_seconds"))
    again, allowed = _number(data, "attempt") - 1, _number(data, "max_attempts") - 1
    return say("retrying", locale, number=again, allowed=allowed, reason=say(_why(data), locale))


def _why(data: Data) -> str:
    if data.get("reason") == "incomplete":
        return "why_cut_off"
    codes = data.get("codes")
    named = [str(code) for code in codes] if isinstance(codes, list) else []
    found = [_WHY[code] for code in named if code in _WHY]
    # The missing step is a note for us; whatever else is wrong says more to a reader.
    return next((why for why in found if why != "why_step"), found[0] if found else "why_other")


def _mended(data: Data, locale: str) -> str:
    changes = data.get("changes")
    text = _plain("; ".join(map(str, changes)) if isinstance(changes, list) else "")
    return say("mended", locale, changes=text) if text else ""


def _gate(data: Data, locale: str) -> str:
    if data.get("skipped"):
        return ""
    return say("gate_passed" if data.get("passed") else "gate_failed", locale, gate=_plain(data.get("gate")))


def _finished(data: Data, locale: str) -> str:
    return say("done" if data.get("success") else "not_done", locale)


_LINES: dict[str, Callable[[Data, str], str]] = {
    "turn.queued": _queued,
    "attempt.started": lambda _, locale: say("started", locale),
    "attempt.tool": _tool,
    "attempt.reset": lambda _, locale: say("reset", locale),
    "attempt.completed": _completed,
    "attempt.lost": lambda _, locale: say("lost", locale),
    "turn.retrying": _retrying,
    "turn.fallback": lambda _, locale: say("fallback", locale),
    "turn.mended": _mended,
    "gate.checked": _gate,
    "verifier.started": lambda _, locale: say("verifying", locale),
    "verifier.judged": lambda data, locale: say("verified" if data.get("success") else "not_verified", locale),
    "turn.escalated": lambda data, locale: say("escalated", locale) if data.get("stage") == 1 else "",
    "turn.decided": lambda _, locale: say("decided", locale),
    "turn.stopping": lambda _, locale: say("stopping", locale),
    "turn.finished": _finished,
}

"""Summarises an event on one line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from api_client.contract.events import Event
from api_client.contract.issue import error_codes, read_issues

#: Fields that the list of attempts shows, or that nobody needs to read.
_HIDDEN_FIELDS = {"feedback", "response", "step_source", "fixed", "interruption"}
_MAX_FACT_CHARS = 160


def summarize_event(event: Event) -> str:
    """Summarise an event's data in one line of text, without long texts."""
    return " · ".join(filter(None, (_format_fact(name, value) for name, value in event.data.items())))


def _format_fact(name: str, value: Any) -> str:
    if name == "text" and value:
        return str(value)[:_MAX_FACT_CHARS]
    if name in _HIDDEN_FIELDS or value in ("", [], {}, None):
        return ""
    match name, value:
        case "issues", list():
            return ", ".join(error_codes(read_issues(value))) or "warnings only"
        case "error", dict():
            return str(value.get("code", ""))
        case "until", float() | int():
            return f"until {datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC" if value else ""
        case _, bool():
            return name if value else f"not {name}"
        case _, list():
            return f"{name.replace('_', ' ')} {', '.join(map(str, value))}"[:_MAX_FACT_CHARS]
        case (("reason" | "outcome" | "verdict" | "name" | "detail" | "during" | "step"), _):
            return str(value).replace("_", " ")[:_MAX_FACT_CHARS] if name == "outcome" else str(value)[:_MAX_FACT_CHARS]
    return f"{name.replace('_', ' ')} {value}"[:_MAX_FACT_CHARS]

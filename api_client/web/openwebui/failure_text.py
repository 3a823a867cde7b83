"""Writes the error text for a chat user as one plain paragraph, because Open WebUI shows errors in a text box."""

from __future__ import annotations

import re
from collections.abc import Sequence

from api_client.contract.error_codes import ERROR_CODES, error_sentence, error_words
from api_client.contract.event_kinds import TurnFinished
from api_client.contract.issue import ValidationIssue, error_codes
from api_client.contract.turn_error import TurnError
from api_client.web.sentences import translate

_MAX_FAULTS = 6
#: Advice for outcomes where another attempt of the user may help; other advice comes from ``ERROR_CODES``.
_ADVICE = {
    "failed": "ask_differently",
    "rejected": "ask_differently",
    "incomplete": "ask_again",
    "expired": "ask_less",
    "cancelled": "ask_again",
}


def format_failure(end: TurnFinished, locale: str, turn_id: str) -> str:
    """Explain to a chat user why a turn ended without an answer, and what to do next.

    ``locale`` is the language of the text; validation errors stay in the turn's language.
    """
    error, outcome = end.error or TurnError(), end.outcome
    code = error.code
    issues = [issue for issue in error.issues if issue.is_error]
    kind = code if code in ERROR_CODES else outcome if outcome in ERROR_CODES else "error"
    happened, advice = error_words(kind, locale)
    if kind == "failed":
        happened = translate("failed_all" if end.attempts > 1 else "failed", locale, attempts=end.attempts)
    details = _format_faults(issues, locale) if outcome == "failed" else ""
    if kind in {"incomplete", "rejected", "refused"}:
        details = _find_last_reason(error.message)
        if kind == "rejected":  # the reason says again what happened
            happened, details = details or happened, ""
        if kind == "refused":  # the text already says that the model refused
            details = re.sub(r"\A(?:The model refused|Es sagte)(?:: |\.\Z)", "", details)
    if kind in _ADVICE:
        advice = translate(_ADVICE[kind], locale)
    return " ".join(filter(None, [happened, details, advice, _format_names(issues, turn_id)]))


def format_lost_stream(code: str, locale: str, turn_id: str) -> str:
    """Explain to a chat user why the stream ended before the turn, and how to get the answer later."""
    if code not in {"stream_lost", "turn_suspended"}:
        return error_sentence(code, locale)
    return f"{error_words(code, locale)[0]} {translate(f'{code}_advice', locale)} {_format_names((), turn_id)}"


def _format_faults(issues: Sequence[ValidationIssue], locale: str) -> str:
    places: dict[str, list[str]] = {}
    for issue in issues:
        places.setdefault(issue.message.strip().rstrip("."), []).append(issue.adr or issue.file)
    faults = [_add_places(message, where) for message, where in places.items() if message]
    if not faults:
        return ""
    more = [translate("and_more", locale, count=len(faults) - _MAX_FAULTS)] if len(faults) > _MAX_FAULTS else []
    return translate("found", locale, faults="; ".join([*faults[:_MAX_FAULTS], *more]))


def _add_places(message: str, where: list[str]) -> str:
    named = [name for name in dict.fromkeys(where) if name and name not in message]
    if named:
        return f"{message} ({', '.join(named)})"
    return f"{message} ({len(where)}×)" if len(where) > 1 else message


def _find_last_reason(message: str) -> str:
    reasons = [line.removeprefix("- ").strip() for line in message.splitlines() if line.startswith("- ")]
    return f"{reasons[-1][:1].upper()}{reasons[-1][1:].rstrip('.: ')}." if reasons else ""


def _format_names(issues: Sequence[ValidationIssue], turn_id: str) -> str:
    codes = filter(None, error_codes(issues))
    return f"({', '.join([*codes, turn_id])})"

"""A rejected answer as server-sent events for OpenAI clients (ADR-038, section 5, in chunks that are JSON)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.codes import DEFAULT_LOCALE, choose_text

#: Model name in the chunks; no model wrote them.
MODEL = "helix-enforcement"


def error_lines(issues: Sequence[ValidationIssue], locale: str = DEFAULT_LOCALE) -> list[str]:
    """Return the error message that tells the user why an answer was rejected, as a list of lines."""
    head = choose_text(
        locale, "Die LLM-Response konnte nicht validiert werden:", "The LLM response could not be validated:"
    )
    tail = choose_text(
        locale,
        "Bitte versuche es erneut oder kontaktiere den Administrator.",
        "Please try again or contact the administrator.",
    )
    return ["[ENFORCEMENT ERROR]", head, *(f"- {issue.code}: {issue.message}" for issue in issues), tail]


def error_frames(issues: Sequence[ValidationIssue], locale: str = DEFAULT_LOCALE) -> Iterator[str]:
    """Yield the server-sent events that report a rejected answer to an OpenAI client, up to the final ``[DONE]``."""
    for number, line in enumerate(error_lines(issues, locale)):
        delta = {"content": line + "\n"} | ({"role": "assistant"} if number == 0 else {})
        yield _make_frame(_make_chunk(delta, None))
    yield _make_frame(_make_chunk({}, "stop"))
    yield _make_frame({"error": error_object(issues, locale)})
    yield "data: [DONE]\n\n"


def error_object(issues: Sequence[ValidationIssue], locale: str = DEFAULT_LOCALE) -> dict[str, Any]:
    """Return validation issues as an error object in the format of OpenAI's API."""
    errors = [issue for issue in issues if issue.is_error]
    codes = ", ".join(dict.fromkeys(issue.code for issue in errors or issues))
    message = choose_text(
        locale, "Die LLM-Response konnte nicht validiert werden", "The LLM response could not be validated"
    )
    return {
        "message": f"{message}: {codes}" if codes else message,
        "type": "enforcement_error",
        "param": None,
        "code": (errors or [*issues])[0].code if issues else None,
    }


def _make_chunk(delta: dict[str, str], finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    # Pure code has no clock; the epoch marks the time as unknown.
    return {
        "id": "chatcmpl-enforcement",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
    }


def _make_frame(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"

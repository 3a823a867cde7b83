"""Messages for a user whose turn ends without an answer, and prompts for the agent in that case."""

from __future__ import annotations

import re

from api_client.contract.error_codes import ERROR_CODES, error_sentence, error_words
from api_client.contract.issue import ValidationIssue
from api_client.contract.word_tables import load_word_table

#: Endings without validation: outcome -> language -> message.
GIVEN_UP = {
    outcome: {locale: error_sentence(outcome, locale) for locale in ("de", "en")}
    for outcome in ("cancelled", "expired", "dead")
}

#: Endings after an agent run. ``failed`` is followed by the issues, one line each.
ENDED = ("failed", "incomplete", "refused", "error")

#: Sentences around issues, and reasons why an agent did not finish (``broken_off_*``).
_WORDS = load_word_table(__file__)


def format_issue(issue: ValidationIssue) -> str:
    """Format an issue as one line with code, file, line and message."""
    file, line, message = issue.file, issue.line, issue.message
    place = f"{file}:{line}: " if file and line else f"{file}: " if file and file not in message else ""
    return f"{issue.code}: {place}{message}"


def explain_break(why: str, locale: str, reason: str) -> str:
    """Explain to a user in one sentence why an agent run gave no answer."""
    if locale != "de":
        return error_words(why, locale)[0] if why in {"transient", "permanent", "no_credit"} else reason
    known = _WORDS.get(f"broken_off_{why}")
    if why == "refused" and known:
        return f"{known['de']} {reason.partition(': ')[2]}"
    ended = re.search(r"finish_reason [\w:, .-]+", reason)
    if known and ended:
        return f"{known['de'].removesuffix('.')} ({ended[0]})."
    return str(known["de"]) if known else error_words(why if why in ERROR_CODES else "internal_error", locale)[0]


def ending_message(outcome: str, locale: str, lines: list[str], code: str = "") -> str:
    """Return the message that tells the user why a turn ended without an answer. ``lines`` are the reasons.

    ``code`` is the kind of error, whose advice is more precise: a temporary error needs no administrator.
    """
    first, last = error_words(outcome, locale)
    if outcome == "error" and code in ERROR_CODES:
        last = error_words(code, locale)[1]
    return "\n".join([f"{first.removesuffix('.')}:", *(f"- {line}" for line in lines), last])


def rejection_message(locale: str, lines: list[str], *, note: str, timed_out: bool) -> str:
    """Return the message that tells the user that a person rejected the result, or that nobody decided in time."""
    if timed_out:
        why = _translate("nobody_decided", locale)
    elif said := " ".join(note.split()):  # each reason is one line
        why = _translate("person_rejected_because", locale, note=said)
    else:
        why = _translate("person_rejected", locale)
    return ending_message("failed", locale, [*lines, why])


def other_model_prompt(prompt: str, locale: str, hints: list[str]) -> str:
    """Return the prompt for another model after the first one failed: the task and the known problems."""
    task = [prompt, "", "---", ""] if prompt else []
    return "\n".join([*task, _translate("another_failed", locale), *(f"- {hint}" for hint in hints)])


def review_prompt(note: str, locale: str, hints: list[str]) -> str:
    """Return the prompt for another try, with a person's ``note`` and the unresolved problems."""
    lines = [_translate("person_says", locale), "", note.strip()]
    return "\n".join(
        lines + (["", _translate("still_open", locale), *(f"- {hint}" for hint in hints)] if hints else [])
    )


def _translate(name: str, locale: str, **values: object) -> str:
    return str(_WORDS[name]["de" if locale == "de" else "en"]).format(**values)

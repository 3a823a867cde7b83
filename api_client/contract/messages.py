"""Words for a user whose turn ends without an answer, and prompts for an agent then.

The words are in ``messages.toml``, those of the endings in ``error_codes.toml``.
"""

from __future__ import annotations

import re

from api_client.contract.error_codes import ERROR_CODES, sentence, words_of
from api_client.contract.issue import ValidationIssue
from api_client.contract.word_tables import table_beside

#: Endings that nobody judged: outcome -> language -> message.
GIVEN_UP = {
    outcome: {locale: sentence(outcome, locale) for locale in ("de", "en")}
    for outcome in ("cancelled", "expired", "dead")
}

#: Endings after the agent ran. ``failed`` is followed by the issues, one line each.
ENDED = ("failed", "incomplete", "refused", "error")

#: Sentences around what was found, and why an agent did not finish (``broken_off_*``).
_WORDS = table_beside(__file__)


def line_of(issue: ValidationIssue) -> str:
    """Return what was found as one line: its code, file and line where it is in a file, and the message."""
    file, line, message = issue.file, issue.line, issue.message
    place = f"{file}:{line}: " if file and line else f"{file}: " if file and file not in message else ""
    return f"{issue.code}: {place}{message}"


def broken_off(why: str, locale: str, reason: str) -> str:
    """Word the missing answer in the user's language: ``why`` is a code, ``reason`` the runner's English sentence."""
    if locale != "de":
        return words_of(why, locale)[0] if why in {"transient", "permanent", "no_credit"} else reason
    known = _WORDS.get(f"broken_off_{why}")
    if why == "refused" and known:
        return f"{known['de']} {reason.partition(': ')[2]}"
    ended = re.search(r"finish_reason [\w:, .-]+", reason)
    if known and ended:
        return f"{known['de'].removesuffix('.')} ({ended[0]})."
    return str(known["de"]) if known else words_of(why if why in ERROR_CODES else "internal_error", locale)[0]


def ending(outcome: str, locale: str, lines: list[str], code: str = "") -> str:
    """The message for a turn that ended as ``outcome``, one of ``ENDED``, for the reasons in ``lines``.

    ``code`` is the kind of an error, which knows what to do better: a passing one needs no administrator.
    """
    first, last = words_of(outcome, locale)
    if outcome == "error" and code in ERROR_CODES:
        last = words_of(code, locale)[1]
    return "\n".join([f"{first.removesuffix('.')}:", *(f"- {line}" for line in lines), last])


def rejected(locale: str, lines: list[str], *, note: str, timed_out: bool) -> str:
    """The message for a turn that nobody accepted: rejected by a person, or not decided in time."""
    if timed_out:
        why = _say("nobody_decided", locale)
    elif said := note.strip():
        why = _say("person_rejected_because", locale, note=said)
    else:
        why = _say("person_rejected", locale)
    return ending("failed", locale, [*lines, why])


def consulted(prompt: str, locale: str, hints: list[str]) -> str:
    """Return what another model is asked when the first one failed: the task itself, and what was wrong before.

    It starts afresh, so it must give everything, not a correction.
    """
    task = [prompt, "", "---", ""] if prompt else []
    return "\n".join([*task, _say("another_failed", locale), *(f"- {hint}" for hint in hints)])


def asked_again(note: str, locale: str, hints: list[str]) -> str:
    """Return what the agent is asked when a person wants another attempt."""
    lines = [_say("person_says", locale), "", note.strip()]
    return "\n".join(lines + (["", _say("still_open", locale), *(f"- {hint}" for hint in hints)] if hints else []))


def _say(name: str, locale: str, **values: object) -> str:
    return str(_WORDS[name]["de" if locale == "de" else "en"]).format(**values)

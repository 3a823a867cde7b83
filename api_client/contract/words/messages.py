"""What a user reads when a turn ends without an answer, in German and English; the words are in ``error_codes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_client.contract.words.error_codes import ERROR_CODES, sentence, words_of

#: Endings that nobody judged: outcome -> language -> message.
GIVEN_UP = {
    outcome: {locale: sentence(outcome, locale) for locale in ("de", "en")}
    for outcome in ("cancelled", "expired", "dead")
}

#: Endings after the agent ran. ``failed`` is followed by the issues, one line each.
ENDED = ("failed", "incomplete", "error")

#: Why an agent did not finish, for readers of German; readers of English get the runner's own sentence.
_BROKEN_OFF = {
    "broke_off": "Er brach vorzeitig ab.",
    "killed": "Er wurde von außen beendet.",
    "silent": "Er wurde fertig, ohne etwas zu antworten.",
    "idle": "Er meldete sich zu lange nicht mehr.",
    "deadline": "Die Zeit für diesen Versuch war um.",
}


def line_of(issue: Mapping[str, Any]) -> str:
    """What was found as one line: its code, file and line where it is in a file, and the message."""
    file, line, message = (issue.get(name) or "" for name in ("file", "line", "message"))
    place = f"{file}:{line}: " if file and line else f"{file}: " if file and str(file) not in str(message) else ""
    return f"{issue.get('code', '')}: {place}{message}"


def broken_off(why: str, locale: str, reason: str) -> str:
    """Why there is no answer, in the user's language: ``why`` is a code, ``reason`` the runner's English sentence."""
    if locale != "de":
        return reason
    return _BROKEN_OFF.get(why) or words_of(why if why in ERROR_CODES else "internal_error", locale)[0]


def ending(outcome: str, locale: str, lines: list[str], code: str = "") -> str:
    """The message for a turn that ended as ``outcome`` (failed, incomplete or error) for the reasons in ``lines``.

    ``code`` is the kind of an error, which knows what to do better: a passing one needs no administrator.
    """
    first, last = words_of(outcome, locale)
    if outcome == "error" and code in ERROR_CODES:
        last = words_of(code, locale)[1]
    return "\n".join([f"{first.removesuffix('.')}:", *(f"- {line}" for line in lines), last])


def rejected(locale: str, lines: list[str], *, note: str, timed_out: bool) -> str:
    """The message for a turn that nobody accepted: rejected by a person, or not decided in time."""
    german = locale == "de"
    if timed_out:
        why = "Niemand hat rechtzeitig entschieden." if german else "Nobody decided in time."
    else:
        why = "Ein Mensch hat das Ergebnis abgelehnt" if german else "A person rejected the result"
        why += f": {note.strip()}" if note.strip() else "."
    return ending("failed", locale, [*lines, why])


def consulted(prompt: str, locale: str, hints: list[str]) -> str:
    """What another model is asked when the first one failed: the task itself, and what was wrong before.

    It starts afresh, so it must give everything, not a correction.
    """
    if locale == "de":
        first = "Ein anderer Agent ist an dieser Aufgabe gescheitert. Löse sie neu und vollständig. Beanstandet wurde:"
    else:
        first = "Another agent failed at this task. Solve it anew and completely. What was wrong:"
    task = [prompt, "", "---", ""] if prompt else []
    return "\n".join([*task, first, *(f"- {hint}" for hint in hints)])


def asked_again(note: str, locale: str, hints: list[str]) -> str:
    """What the agent is asked when a person wants another attempt."""
    german = locale == "de"
    first = (
        "Ein Mensch hat deine Arbeit angesehen und schreibt:" if german else "A person looked at your work and says:"
    )
    last = "Noch offen aus der Prüfung:" if german else "Still open from the checks:"
    lines = [first, "", note.strip()]
    return "\n".join(lines + (["", last, *(f"- {hint}" for hint in hints)] if hints else []))

"""Words for a user whose turn ends without an answer, and prompts for an agent then.

The words are in ``messages.toml``, those of the endings in ``error_codes.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from api_client.contract.declared import table_beside
from api_client.contract.error_codes import ERROR_CODES, sentence, words_of
from api_client.contract.issues import ValidationIssue
from api_client.contract.tool_calls import MAX_QUESTIONS, ToolQuestion

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


# A planned hand-over of a turn beside a worker that died: words for operators.

#: Why an attempt was handed over, by ``during`` of its ``attempt.lost``.
_BECAUSE = {
    "shutdown": "its worker was stopped",
    "host": "its machine could not work",
    "files": "the object store with its session's files did not answer",
    "set_up": "its worker is not set up for it",
    "fenced": "its worker was not heard in time",
    "guard died": "the guard of its agent died",
    "killed": "its agent was killed from outside, such as by the kernel for want of memory",
}


def is_hand_over(during: str) -> bool:
    """Return whether an ``attempt.lost`` is a hand-over, by its ``during``; else its worker died or froze."""
    return during not in {"running", "validating", ""}


def handed_over(during: str) -> str:
    """Return what is shown of a hand-over, such as ``handed over: its worker was stopped``."""
    return f"handed over: {_BECAUSE.get(during, 'its worker gave it back')}"


# What an agent hears about a tool call that does not run, or that a person was asked about.


def tool_denied(locale: str) -> str:
    """The words about a call that the policy denies."""
    return _say("tool_denied", locale)


def tool_refused(locale: str, reason: str) -> str:
    """The words about a call that nobody was asked about: ``too_long``, ``with_secret``, or ``limit`` of questions."""
    return _say(f"tool_{reason}", locale, most=MAX_QUESTIONS)


def tool_later(locale: str) -> str:
    """The words about a call that comes together with one that a person is asked about, or has allowed."""
    return _say("tool_later", locale)


def tool_unused(locale: str, question: ToolQuestion) -> str:
    """The words about a call that a person allowed, and that the agent never made."""
    return _say("tool_unused", locale, call=question.words)


def tool_answered(locale: str, question: ToolQuestion) -> str:
    """The words about a person's answer, with what they wrote; a no is also what silence means."""
    if question.refused:
        return tool_refused(locale, question.refused)
    name = "tool_answered_yes" if question.allowed == "yes" else "tool_answered_no"
    because = "_because" if question.note and question.allowed != "yes" else ""
    return _say(f"{name}{because}", locale, note=question.note, call=question.words)


# The language of a question: German, English, or not to be seen.

#: Common words of each language, of questions above all; "was", "will" and "die" are words of both.
_COMMON = {
    "de": "der das und ist nicht ein eine einen einem einer mit für auf den dem sich auch wird werden sind bei oder "
    "aber nur noch wenn wie wir sie ich zur zum durch über nach von vom zu im aus kann kannst könnte können haben "
    "habe hast diese dieser dieses dass weil warum wieso wer wo wann wozu welche welcher welches bitte danke "
    "hallo mir mich uns dir euch ihr mein meine unser unsere kein keine gibt geht soll sollen sollte muss müssen "
    "ja nein schon jetzt hier dann schreib schreibe erklär erkläre erstelle prüfe nenne zeig zeige mach gib hilf "
    "weiter",
    "en": "the and of to is that it for are with this be have from or which you they we can could would should not but "
    "when there their has were been its than into these those what why how who where my our your us does did by as if "
    "please thanks hello yes write explain create check show give make tell help go",
}
_GERMAN, _ENGLISH = (frozenset(_COMMON[name].split()) for name in ("de", "en"))
_WORD = re.compile(r"[^\W\d_]{2,20}")
#: Text that somebody else may have written: code, and quotations.
_QUOTED = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|^[ \t]*>[^\n]*|\"[^\"\n]*\"|„[^“”\n]*[“”]", re.DOTALL | re.MULTILINE)
#: Messages that are looked at, and characters of each.
_MESSAGES, _CHARS = 8, 1_000


def spoken(texts: Iterable[str]) -> str:
    """Name the language that a user writes, ``de`` or ``en``; empty where no text shows which.

    ``texts``: the user's messages, newest first; the first that shows a language decides.
    """
    for text in islice(texts, _MESSAGES):
        words = _WORD.findall(_QUOTED.sub(" ", text[:_CHARS]).lower())
        german, english = sum(map(_GERMAN.__contains__, words)), sum(map(_ENGLISH.__contains__, words))
        if german != english:
            return "de" if german > english else "en"
    return ""

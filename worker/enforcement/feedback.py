"""The prompt of a repeated run, and its words: ADR-038 section 5, in German and English."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.issues.issue import ValidationIssue
from worker.enforcement.content_guard import Request
from worker.enforcement.documents.part import (
    FILES,
    STEP_MARKER,
    YAML_HEADER,
    fence_of,
    header_key,
    lines_range,
    section_title,
)
from worker.enforcement.going_on import known, last_lines
from worker.enforcement.validators.codes import DEFAULT_LOCALE, words

#: Most issues that one feedback lists; the rest is counted.
MAX_ISSUES = 20


def build_feedback(
    issues: Sequence[ValidationIssue],
    locale: str = DEFAULT_LOCALE,
    *,
    request: Request | None = None,
    ignored: bool = False,
) -> str:
    """The prompt of a retry: every error with its fix, and exactly what is to be sent.

    When code knows where each part goes, only those parts are asked for: code puts them into the answer, and the rest
    of it stays as it is (surgical retry).

    Args:
        issues: what the validators found; warnings are left out.
        locale: ``de`` or ``en``.
        request: what is asked for; without it what the issues say by themselves.
        ignored: the last reply did not change the answer that counts.
    """
    errors = [issue for issue in issues if issue.is_error]
    lines = [
        words(
            locale,
            "WICHTIG: Deine letzte Antwort hatte Validierungsfehler. Bitte korrigiere:",
            "IMPORTANT: Your last answer had validation errors. Please correct:",
        ),
        "",
    ]
    for issue in errors[:MAX_ISSUES]:
        where = f" ({_place(issue, locale)})" if issue.file or issue.line else ""
        lines += [f"**{issue.code}**: {issue.message}{where}", f"  → Fix: {issue.fix_hint}", ""]
    if len(errors) > MAX_ISSUES:
        more = len(errors) - MAX_ISSUES
        lines += [words(locale, f"… und {more} weitere Fehler derselben Art.", f"… and {more} more errors."), ""]
    lines.append(
        words(
            locale,
            "Bitte wiederhole deine Antwort mit den Korrekturen.",
            "Please repeat your answer with the corrections.",
        )
    )
    lines += _asked(errors, locale, request or _by_themselves(errors))
    if ignored:
        lines.append(
            words(
                locale,
                "Deine letzte Nachricht enthielt das nicht: Es gilt weiter deine Antwort davor.",
                "Your last message did not contain that: the answer before it still counts.",
            )
        )
    return "\n".join(lines)


def _by_themselves(errors: Sequence[ValidationIssue]) -> Request:
    mine = [error.part for error in errors if not error.file]
    return Request(tuple(dict.fromkeys(part for part in mine if part)), not all(mine))


def _asked(errors: Sequence[ValidationIssue], locale: str, request: Request) -> list[str]:
    """Return what is to be sent, where that is less than a whole answer."""
    if request.whole or not errors:
        return []
    named = ", ".join(describe(part, locale) for part in request.parts)
    files = ", ".join(dict.fromkeys(error.file for error in errors if error.file))
    lines = []
    if files:
        german, english = f"Korrigiere die Dateien selbst: {files}.", f"Correct the files themselves: {files}."
        lines.append(words(locale, german, english))
    if named:
        if titles := [part for part in request.parts if section_title(part)]:
            german = (
                f"Die erste Zeile deiner Nachricht ist die Überschrift `{titles[0]}`; davor und danach steht nichts."
            )
            english = f"The first line of your message is the heading `{titles[0]}`; write nothing before or after it."
            lines.append(words(locale, german, english))
        lines.append(
            words(
                locale,
                f"Schicke dabei nur {named}: Der Rest deiner Antwort liegt vor und bleibt unverändert.",
                f"Send only {named}: the rest of your answer is kept as it is.",
            )
        )
    else:
        lines.append(
            words(locale, "Deine Antwort selbst liegt vor und bleibt.", "Your answer itself is kept as it is.")
        )
    return lines


def incomplete_feedback(locale: str = DEFAULT_LOCALE) -> str:
    """The prompt of a retry after an answer that broke off (ADR-036)."""
    return words(
        locale,
        "WICHTIG: Deine letzte Antwort brach ab, bevor sie fertig war. Bitte gib die vollständige Antwort noch einmal.",
        "IMPORTANT: Your last answer broke off before it was finished. Please give the complete answer once more.",
    )


def go_on_feedback(so_far: str, locale: str = DEFAULT_LOCALE) -> str:
    """The prompt of a retry that goes on from the text so far, whose last lines it quotes."""
    quoted = "\n".join(f"> {line}".rstrip() for line in last_lines(known(so_far)).split("\n"))
    return words(
        locale,
        "WICHTIG: Deine letzte Antwort brach ab, bevor sie fertig war. Was bis dahin kam, liegt vor und bleibt. "
        f"Die letzten Zeilen davon:\n\n{quoted}\n\nSetze deine Antwort dort fort: Beginne mit der letzten zitierten "
        "Zeile, wörtlich, und schreibe von da an weiter bis zum Ende. Wiederhole nichts, was davor stand.",
        "IMPORTANT: Your last answer broke off before it was finished. What had come by then is kept. "
        f"Its last lines:\n\n{quoted}\n\nGo on from there: begin with the last quoted line, word for word, and write "
        "on to the end. Repeat nothing that stood before it.",
    )


def _place(issue: ValidationIssue, locale: str) -> str:
    line = f"{words(locale, 'Zeile', 'line')} {issue.line}" if issue.line else ""
    return ", ".join(piece for piece in (issue.file, line) if piece)


def describe(part: str, locale: str) -> str:
    """A part in words for the agent."""
    if fence := fence_of(part):
        language, number = fence
        return words(locale, f"den {number}. ```{language}-Block", f"```{language} block number {number}")
    if lines := lines_range(part):
        german = (
            "die Zeile {0} in einem ```text-Block"
            if lines[0] == lines[1]
            else "die Zeilen {0}-{1} in einem ```text-Block"
        )
        english = "line {0} in a ```text block" if lines[0] == lines[1] else "lines {0}-{1} in a ```text block"
        return words(locale, german, english).format(*lines)
    if part == STEP_MARKER:
        return words(locale, "den STEP-Marker", "the STEP marker")
    if part == YAML_HEADER:
        return words(
            locale, "den vollständigen YAML-Header (mit den --- Zeilen)", "the whole YAML header (with its --- lines)"
        )
    key = header_key(part)
    if key == FILES:
        return words(locale, "den ganzen Block 'files' des YAML-Headers", "the whole block 'files' of the YAML header")
    if key:
        return words(locale, f"die Zeile '{key}' des YAML-Headers", f"the line '{key}' of the YAML header")
    return words(locale, f"die Section '{part}'", f"the section '{part}'")

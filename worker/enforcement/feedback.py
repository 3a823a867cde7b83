"""What the agent is told before it is run again, and the words for it: ADR-038 section 5, in German and English."""

from __future__ import annotations

from collections.abc import Sequence

from worker.enforcement.codes import DEFAULT_LOCALE, words
from worker.enforcement.documents.part import describe
from worker.enforcement.issue import ValidationIssue

#: Most issues that one feedback lists; the rest is counted.
MAX_ISSUES = 20


def build_feedback(issues: Sequence[ValidationIssue], locale: str = DEFAULT_LOCALE) -> str:
    """The prompt of a retry: every error with its fix.

    When each error names the part that is missing, only those parts are asked for: code puts them into the answer, and
    the rest of it stays as it is (surgical retry).

    Args:
        issues: what the validators found; warnings are left out.
        locale: ``de`` or ``en``.
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
    parts = list(dict.fromkeys(issue.part for issue in errors))
    if errors and all(parts) and not any(issue.file for issue in errors):
        named = ", ".join(describe(part, locale) for part in parts)
        lines.append(
            words(
                locale,
                f"Schicke dabei nur {named}: Der Rest deiner Antwort liegt vor und bleibt unverändert.",
                f"Send only {named}: the rest of your answer is kept as it is.",
            )
        )
    return "\n".join(lines)


def incomplete_feedback(locale: str = DEFAULT_LOCALE) -> str:
    """The prompt of a retry after an answer that broke off (ADR-036)."""
    return words(
        locale,
        "WICHTIG: Deine letzte Antwort brach ab, bevor sie fertig war. Bitte gib die vollständige Antwort noch einmal.",
        "IMPORTANT: Your last answer broke off before it was finished. Please give the complete answer once more.",
    )


def _place(issue: ValidationIssue, locale: str) -> str:
    line = f"{words(locale, 'Zeile', 'line')} {issue.line}" if issue.line else ""
    return ", ".join(piece for piece in (issue.file, line) if piece)

"""The closed table of issue codes, loaded from ``codes.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.issue import Severity, ValidationIssue
from api_client.contract.word_tables import load_word_table

LOCALES = ("de", "en")
DEFAULT_LOCALE = "en"

QUOTE_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of issue that validators report, with its texts.

    Attributes:
        when: when the code is reported, as one English sentence.
        repair: how the fallback repairs it; empty if it cannot.
        de, en: templates of message and fix hint.
        shortens: the repair makes the answer shorter.
    """

    severity: Severity
    when: str
    repair: str
    de: tuple[str, str]
    en: tuple[str, str]
    shortens: bool = False


def load_codes(module: str) -> Mapping[str, Code]:
    """Return the issue codes that the TOML file beside a module defines. ``module`` is the module's ``__file__``."""
    return {
        name: Code(
            severity=Severity(entry.get("severity", "error")),
            when=entry["when"],
            repair=entry.get("repair", ""),
            de=tuple(entry["de"]),
            en=tuple(entry["en"]),
            shortens=entry.get("shortens", False),
        )
        for name, entry in load_word_table(module).items()
    }


CODES = load_codes(__file__)


def choose_text(locale: str, german: str, english: str) -> str:
    return german if locale.lower().startswith("de") else english


def make_issue(
    code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """Return a new issue for an issue code, with ``values`` filled into the code's texts.

    Raises ``KeyError`` if the code or a value is missing.
    """
    return build_issue(CODES[code], code, locale, file=file, line=line, part=part, **values)


def build_issue(
    entry: Code, code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """Return a new issue for a table entry, with ``values`` filled into the entry's texts.

    Raises ``KeyError`` if a value is missing.
    """
    message, hint = entry.de if locale.lower().startswith("de") else entry.en
    if values:
        shown = {name: clip_text(str(value)) for name, value in values.items()}
        message, hint = message.format_map(shown), hint.format_map(shown)
    return ValidationIssue(
        code, message, hint, entry.severity, file=file, line=line, part=part, shortens=entry.shortens
    )


def clip_text(text: str, limit: int = QUOTE_LIMIT) -> str:
    """Return a text as one short, printable line that is safe for messages, logs and prompts."""
    head = text[: limit + 1]
    flat = head if head.isprintable() else "".join([char if char.isprintable() else " " for char in head])
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"

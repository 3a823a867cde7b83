"""The closed table of issue codes: severity, occasion, repair and words stand in ``codes.toml``.

The rules with options have another table, and so have gates. docs/enforcement.md lists the same codes; a
test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.issue import Severity, ValidationIssue
from api_client.contract.word_tables import table_beside

LOCALES = ("de", "en")
DEFAULT_LOCALE = "en"

#: Longest piece of an answer that a message quotes, in characters.
QUOTE_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Code:
    """One rule that an answer can break.

    Attributes:
        severity: whether it causes a retry. when: when it is reported, one English sentence.
        repair: what repairs it besides the agent: the fallback's doing, or empty for none.
        de, en: message and fix hint as templates, in German and English.
        shortens: its repair makes the answer shorter (``ValidationIssue.shortens``).
    """

    severity: Severity
    when: str
    repair: str
    de: tuple[str, str]
    en: tuple[str, str]
    shortens: bool = False


def codes_beside(module: str) -> Mapping[str, Code]:
    """The codes of a module (its ``__file__``), from the TOML file beside it."""
    return {
        name: Code(
            severity=Severity(entry.get("severity", "error")),
            when=entry["when"],
            repair=entry.get("repair", ""),
            de=tuple(entry["de"]),
            en=tuple(entry["en"]),
            shortens=entry.get("shortens", False),
        )
        for name, entry in table_beside(module).items()
    }


CODES = codes_beside(__file__)


def words(locale: str, german: str, english: str) -> str:
    """The words for a locale: English unless the locale is German."""
    return german if locale.lower().startswith("de") else english


def issue(
    code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """Make an issue with the table's severity, and its words in ``de`` or ``en``.

    The remaining values fill the code's templates; long or unprintable ones are clipped.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(CODES[code], code, locale, file=file, line=line, part=part, **values)


def worded(
    entry: Code, code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """The issue of an entry of this or of another table. Raises ``KeyError``: a value of its templates is missing."""
    message, hint = entry.de if locale.lower().startswith("de") else entry.en
    if values:
        shown = {name: clip(str(value)) for name, value in values.items()}
        message, hint = message.format_map(shown), hint.format_map(shown)
    return ValidationIssue(
        code, message, hint, entry.severity, file=file, line=line, part=part, shortens=entry.shortens
    )


def clip(text: str, limit: int = QUOTE_LIMIT) -> str:
    """A piece of foreign text as one short printable line, so that it can break no frame, log or prompt."""
    head = text[: limit + 1]
    flat = head if head.isprintable() else "".join([char if char.isprintable() else " " for char in head])
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"

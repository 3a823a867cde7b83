"""The error codes: what happened and what to do, in one table (``error_codes.toml``) for all surfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.word_tables import load_word_table


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """The texts that explain one kind of error to users and operators.

    ``de`` and ``en`` are templates of what happened and of what the reader can do; the second may be empty.
    """

    de: tuple[str, str]
    en: tuple[str, str]
    operator: str = ""


ERROR_CODES: Mapping[str, ErrorCode] = {
    code: ErrorCode(tuple(entry["de"]), tuple(entry["en"]), entry.get("operator", ""))
    for code, entry in load_word_table(__file__).items()
}


def error_words(code: str, locale: str) -> tuple[str, str]:
    """Return two sentences in the language of ``locale``: what happened, and what to do about it.

    Raises ``KeyError`` for an unknown code.
    """
    entry = ERROR_CODES[code]
    return entry.de if locale == "de" else entry.en


def error_sentence(code: str, locale: str, **values: object) -> str:
    """Return the explanation of an error for a user: what happened, followed by what to do.

    Raises ``KeyError`` for an unknown code or a missing value of its template.
    """
    return " ".join(filter(None, error_words(code, locale))).format(**values)

"""Every code that our errors carry: what happened and what to do. One table for all sides, ``error_codes.toml``.

The command line writes the code behind its message, the API sends it as ``error.code``, a chat shows the words, and
docs/errors.md is made from it (``turns explain --markdown``). What can be wrong with an answer has a separate table
(``worker/enforcement/validators/codes.toml``); the same command explains both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.word_tables import table_beside


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One kind of error.

    Attributes:
        de, en: what happened, and what the reader can do; the second may be empty. Templates.
        operator: what operators can look at or set, in English; empty when it is the caller's fault alone.
    """

    de: tuple[str, str]
    en: tuple[str, str]
    operator: str = ""


ERROR_CODES: Mapping[str, ErrorCode] = {
    code: ErrorCode(tuple(entry["de"]), tuple(entry["en"]), entry.get("operator", ""))
    for code, entry in table_beside(__file__).items()
}


def words_of(code: str, locale: str) -> tuple[str, str]:
    """Return what happened and what to do, in ``de`` or ``en``; any other locale is English.

    Raises ``KeyError``: no such code.
    """
    entry = ERROR_CODES[code]
    return entry.de if locale == "de" else entry.en


def sentence(code: str, locale: str, **values: object) -> str:
    """Return what a user reads of an error: what happened, then what to do.

    Raises ``KeyError``: no such code, or a value of its template is missing.
    """
    return " ".join(filter(None, words_of(code, locale))).format(**values)

"""Sentences of the relay that a user may read while a turn runs, from the table ``words.toml``.

Errors have another table (``contract/error_codes.toml``), which all sides share.
"""

from __future__ import annotations

from api_client.contract.word_tables import table_beside

_WORDS = table_beside(__file__)


def say(name: str, locale: str, **values: object) -> str:
    """Return the sentence ``name`` in ``de`` or ``en``; other locales get English."""
    texts = _WORDS[name]
    return str(texts.get(locale, texts["en"])).format(**values)

"""Sentences that users of the relay read while a turn goes on, from the table ``words.toml``.

Errors have a table of their own (``contract/error_codes.toml``).
"""

from __future__ import annotations

from api_client.contract.word_tables import table_beside

_WORDS = table_beside(__file__)


def say(name: str, locale: str, **values: object) -> str:
    """Return a sentence of the table in German or English; any locale but ``de`` gives English."""
    texts = _WORDS[name]
    return str(texts.get(locale, texts["en"])).format(**values)

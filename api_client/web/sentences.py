"""Sentences that users of the relay read while a turn continues, from the table ``sentences.toml``."""

from __future__ import annotations

from api_client.contract.word_tables import load_word_table, translate_from

_WORDS = load_word_table(__file__)


def translate(name: str, locale: str, **values: object) -> str:
    """Return the sentence ``name`` in the language of ``locale``, with ``values`` filled in."""
    return translate_from(_WORDS, name, locale, **values)

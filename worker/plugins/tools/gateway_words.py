"""Texts for agents about calls that were not made, or that a recorded result answers."""

from __future__ import annotations

from api_client.contract.word_tables import load_word_table

_WORDS = load_word_table(__file__)


def say_to_agent(word: str, locale: str, **values: object) -> str:
    """Return the message to the agent with the key ``word``, in German or English."""
    language = "de" if locale.lower().startswith("de") else "en"
    text: str = _WORDS[language][word]
    return text.format(**values)

"""Language detection by function words."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from worker.enforcement.documents.document import parse_document

#: The most frequent words of each language, none shared by two.
FUNCTION_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in tomllib.loads(Path(__file__).with_name("function_words.toml").read_text("utf-8")).items()
}
_LANGUAGES = {word: language for language, words in FUNCTION_WORDS.items() for word in words}
_WORD = re.compile(r"[^\W\d_]{1,30}")
#: Fewest function words for a decision.
_LEAST = 8


def detect_language(text: str) -> str:
    """Return the language of a text, such as ``de``, or an empty string if the text has too few function words."""
    return most_frequent_language(count_function_words(text))


def most_frequent_language(counts: Mapping[str | None, int]) -> str:
    """Return the language with the most words, or an empty string if every count is too low."""
    best = max(FUNCTION_WORDS, key=counts.__getitem__)
    return best if counts[best] >= _LEAST else ""


def count_function_words(text: str) -> Counter[str | None]:
    """Count the function words of each language in a text, and all other words under the key None."""
    out = parse_document(text).out
    prose = out.text_without(out.code, out.indented, out.headers)
    return Counter(map(_LANGUAGES.get, _WORD.findall(prose.lower())))

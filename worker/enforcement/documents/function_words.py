"""The language of a text: the function words in its prose tell it."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from worker.enforcement.documents.document import parse

#: The commonest function words of each language, none of them a word of two languages here. In running prose every
#: third to fifth word is such a word, so that a few lines tell languages apart.
FUNCTION_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in tomllib.loads(Path(__file__).with_name("function_words.toml").read_text("utf-8")).items()
}
#: The language of each of these words.
_LANGUAGES = {word: language for language, words in FUNCTION_WORDS.items() for word in words}
_WORD = re.compile(r"[^\W\d_]{1,30}")
#: Function words that must be found before anything is said: a title or a list of names shows no language.
_LEAST = 8


def language_of(text: str) -> str:
    """The language of a text's prose, such as ``de``; empty when too little of it shows."""
    return most(word_counts(text))


def most(counts: Mapping[str | None, int]) -> str:
    """The language with the most words; empty when too little of it shows."""
    best = max(FUNCTION_WORDS, key=counts.__getitem__)
    return best if counts[best] >= _LEAST else ""


def word_counts(text: str) -> Counter[str | None]:
    """Return how often words of each language are in a text's prose; of no language, under None."""
    out = parse(text).out
    prose = out.without(out.code, out.indented, out.headers)
    return Counter(map(_LANGUAGES.get, _WORD.findall(prose.lower())))

"""Digests of word sequences, which show whether an answer contains a text without storing the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

#: Words per sequence, and sequences per text.
_LENGTH, MOST = 6, 24
#: In languages without spaces, a character counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def digest_sequences(text: str, *, cut: bool) -> tuple[str, ...]:
    """Return hashes of word sequences from all parts of a text, ignoring case and punctuation.

    The last word of a ``cut`` text is left out.
    """
    words = _WORD.findall(text.casefold())
    words = words[:-1] if cut and len(words) > 1 else words
    length = min(_LENGTH, len(words))
    starts = range(len(words) - length + 1) if words else range(0)
    spread = dict.fromkeys(starts[at * (len(starts) - 1) // (MOST - 1)] for at in range(MOST)) if starts else ()
    return tuple(dict.fromkeys(_digest_words(words[start : start + length]) for start in spread))


def find_digests(digests: Iterable[str], text: str) -> set[str]:
    """Return the hashes whose word sequences occur in the text."""
    wanted, words = set(digests), _WORD.findall(text.casefold())
    lengths = {int(digest.partition(":")[0]) for digest in wanted}
    return wanted & {_digest_words(words[at : at + n]) for n in lengths for at in range(len(words) - n + 1)}


def _digest_words(words: Sequence[str]) -> str:
    return f"{len(words)}:{blake2b(' '.join(words).encode(), digest_size=5).hexdigest()}"

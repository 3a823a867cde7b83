"""Digests of word sequences: they tell whether a model call's text is in an answer, and hold no text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

#: Words of a sequence, and how many sequences are noted of a text.
_LENGTH, MOST = 6, 24
#: In languages without spaces a character counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def digests_of(text: str, *, cut: bool) -> tuple[str, ...]:
    """Return the digests of sequences spread over a text, each with its length; of a ``cut`` one not of its last word.

    Case, white space and marks do not count: agents render what a model wrote.
    """
    words = _WORD.findall(text.casefold())
    words = words[:-1] if cut and len(words) > 1 else words
    length = min(_LENGTH, len(words))
    starts = range(len(words) - length + 1) if words else range(0)
    spread = dict.fromkeys(starts[at * (len(starts) - 1) // (MOST - 1)] for at in range(MOST)) if starts else ()
    return tuple(dict.fromkeys(_digest(words[start : start + length]) for start in spread))


def digests_in(digests: Iterable[str], text: str) -> set[str]:
    """Return those of some digests whose sequences are in a text."""
    wanted, words = set(digests), _WORD.findall(text.casefold())
    lengths = {int(digest.partition(":")[0]) for digest in wanted}
    return wanted & {_digest(words[at : at + n]) for n in lengths for at in range(len(words) - n + 1)}


def _digest(words: Sequence[str]) -> str:
    return f"{len(words)}:{blake2b(' '.join(words).encode(), digest_size=5).hexdigest()}"

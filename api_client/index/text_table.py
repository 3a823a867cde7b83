"""A table of bits that says which of many messages may contain a text.

The table has a row for each hash of three successive characters, and a column for each message. A message that
contains a text has the bits of all its characters; a few other messages have them too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import reduce
from operator import and_

_ROWS = 4096
_LETTERS = 3
#: Characters of a message that are read; a longer message has all bits, and so may contain every text.
_LONGEST = 20_000
#: Rows that one search compares.
_COMPARED = 8


def find_rows(text: str) -> list[int]:
    """Return the numbers of the table rows to read in a search for ``text``.

    For a text under three letters, the list is empty.
    """
    hashes = _hash_letters(text[:_LONGEST])
    return hashes[:: -(-len(hashes) // _COMPARED)] if hashes else []


def build_table(messages: Sequence[str]) -> bytes:
    """Return the table for these messages: its rows, each with one bit per message, padded to whole bytes."""
    width = -(-len(messages) // 8)
    table = bytearray(_ROWS * width)
    for column, message in enumerate(messages):
        place, bit = column // 8, 1 << column % 8
        for row in range(_ROWS) if len(message) > _LONGEST else _hash_letters(message):
            table[row * width + place] |= bit
    return bytes(table)


def intersect_rows(rows: Sequence[bytes]) -> int:
    """Return the bits that are set in all rows, as a number with one bit for each message."""
    return reduce(and_, (int.from_bytes(row, "little") for row in rows))


def _hash_letters(text: str) -> list[int]:
    folded = text.casefold()
    letters = {folded[start : start + _LETTERS] for start in range(len(folded) - _LETTERS + 1)}
    return sorted({zlib.crc32(each.encode("utf-8", "surrogatepass")) % _ROWS for each in letters})

"""Matches texts with patterns in which only ``*`` is special. Parts of a text may be unknown placeholders."""

from __future__ import annotations

from enum import IntEnum

#: Placeholders in a text: for any text, and for the result of a glob (``*``, ``?``, ``[...]``).
ANY, GLOB = "\0", "\1"


class Match(IntEnum):
    """The result of matching a text with a pattern: no match, a possible match or a certain match."""

    NO = 0
    MAY = 1
    DOES = 2


def match_pattern(pattern: str, text: str) -> Match:
    """Match a text with a pattern in which ``*`` stands for any text.

    The result is ``MAY`` if it depends on a placeholder in the text (``ANY``, ``GLOB``) for a part that is known only
    when a command runs.
    """
    if ANY in text or GLOB in text:
        return Match.MAY if _may_match(pattern, text) else Match.NO
    first, *rest = pattern.split("*")
    if not rest:
        return Match.DOES if text == first else Match.NO
    *middle, last = rest
    at = len(first) if text.startswith(first) else -1
    for part in middle:
        if at >= 0:
            found = text.find(part, at)
            at = found + len(part) if found >= 0 else -1
    return Match.DOES if at >= 0 and text.endswith(last) and len(text) - len(last) >= at else Match.NO


def _may_match(pattern: str, text: str) -> bool:
    end = len(pattern)
    at, before = _skip_stars(pattern, {0}), ""
    for letter in text:
        if letter == ANY:
            at = set(range(min(at), end + 1))
        elif letter == GLOB:
            # Assume that no file name starts with a hyphen, so a glob is never an option.
            stuck = {place for place in at if before in {"", " "} and pattern.startswith("-", place)}
            at = stuck | (set(range(min(at - stuck), end + 1)) if at - stuck else set())
        else:
            stay = {place for place in at if pattern.startswith("*", place)}
            at = _skip_stars(pattern, stay | {place + 1 for place in at if pattern.startswith(letter, place)})
        if not at or (pattern.endswith("*") and end - 1 in at):
            return bool(at)
        before = letter
    return end in at


def _skip_stars(pattern: str, positions: set[int]) -> set[int]:
    """Add, for each position of a star in a pattern, the position after it, because a star may match nothing."""
    for position in sorted(positions):
        while pattern.startswith("*", position):
            position += 1
            positions.add(position)
    return positions

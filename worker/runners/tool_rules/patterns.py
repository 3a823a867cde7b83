"""Match texts against patterns, where parts of a text may be unknown. In a pattern only ``*`` is special."""

from __future__ import annotations

from enum import IntEnum

#: Stand-ins in a text: for any text at all, and for what file names (``*``, ``?``, ``[...]``) put there.
ANY, GLOB = "\0", "\1"


class Fit(IntEnum):
    """How sure it is that something fits."""

    NO = 0
    MAY = 1
    DOES = 2


def fit(pattern: str, text: str) -> Fit:
    """Return whether a text fits a pattern, or may, depending on its unknown parts."""
    if ANY in text or GLOB in text:
        return Fit.MAY if _can_fit(pattern, text) else Fit.NO
    first, *rest = pattern.split("*")
    if not rest:
        return Fit.DOES if text == first else Fit.NO
    *middle, last = rest
    at = len(first) if text.startswith(first) else -1
    for part in middle:
        if at >= 0:
            found = text.find(part, at)
            at = found + len(part) if found >= 0 else -1
    return Fit.DOES if at >= 0 and text.endswith(last) and len(text) - len(last) >= at else Fit.NO


def _can_fit(pattern: str, text: str) -> bool:
    """Return whether some filling of a text's unknown parts fits; ``at`` is every place of the pattern reached."""
    end = len(pattern)
    at, before = _skipped(pattern, {0}), ""
    for letter in text:
        if letter == ANY:
            at = set(range(min(at), end + 1))
        elif letter == GLOB:
            # No option: a file's name that begins with a hyphen is not thought of.
            stuck = {place for place in at if before in {"", " "} and pattern.startswith("-", place)}
            at = stuck | (set(range(min(at - stuck), end + 1)) if at - stuck else set())
        else:
            stay = {place for place in at if pattern.startswith("*", place)}
            at = _skipped(pattern, stay | {place + 1 for place in at if pattern.startswith(letter, place)})
        if not at or (pattern.endswith("*") and end - 1 in at):
            return bool(at)
        before = letter
    return end in at


def _skipped(pattern: str, at: set[int]) -> set[int]:
    """Add the places behind stars, which may stand for nothing."""
    for place in sorted(at):
        while pattern.startswith("*", place):
            place += 1
            at.add(place)
    return at

"""Compares two answers line by line, and changed lines word by word."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

_CONTEXT_LINES = 2
_MOST_LINES, _MOST_WORDS = 2000, 200
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a comparison of two texts.

    ``kind`` is ``same``, ``added``, ``removed``, or ``gap`` for omitted unchanged lines. ``parts`` are pieces of the
    line, each with True if the piece changed.
    """

    kind: str
    parts: tuple[tuple[str, bool], ...]


def compare_texts(before: str, after: str) -> list[DiffLine] | None:
    """Compare two texts. Return the changed lines with their context, or None if a text is too long."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > _MOST_LINES:
        return None
    lines: list[DiffLine] = []
    position = 0
    groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT_LINES)
    for group in groups:
        lines += _make_gap(group[0][1] - position)
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [DiffLine("same", ((line, False),)) for line in old[i1:i2]]
            else:
                lines += _pair_lines(old[i1:i2], new[j1:j2])
            position = i2
    return lines + _make_gap(len(old) - position) if lines else []


def _make_gap(count: int) -> list[DiffLine]:
    return [DiffLine("gap", ((f"{count} unchanged {'line' if count == 1 else 'lines'}", False),))] if count > 0 else []


def _pair_lines(old: list[str], new: list[str]) -> list[DiffLine]:
    removed, added = [], []
    for index in range(max(len(old), len(new))):
        if index < len(old) and index < len(new):
            before, after = _compare_words(old[index], new[index])
            removed.append(DiffLine("removed", before))
            added.append(DiffLine("added", after))
        elif index < len(old):
            removed.append(DiffLine("removed", ((old[index], False),)))
        else:
            added.append(DiffLine("added", ((new[index], False),)))
    return removed + added


def _compare_words(old: str, new: str) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    if max(len(before), len(after)) > _MOST_WORDS:
        return ((old, False),), ((new, False),)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < 0.4:  # unrelated lines: marking single words would confuse
        return ((old, False),), ((new, False),)
    left, right = [], []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        left.append(("".join(before[i1:i2]), tag != "equal"))
        right.append(("".join(after[j1:j2]), tag != "equal"))
    return tuple(part for part in left if part[0]), tuple(part for part in right if part[0])

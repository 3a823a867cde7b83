"""Repetition: how much of a text says again what it has said already, as models do that are caught in a loop."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worker.enforcement.documents.document import parse
from worker.enforcement.documents.outline import lines_of

#: Words that are compared at a time; letters of scripts that part no words count as words.
_WINDOW = 8
#: Shorter texts say little, in words; ordinary ones repeat less of themselves, in per cent.
MIN_WORDS, MOST_PERCENT = 100, 60
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")


@dataclass(frozen=True, slots=True)
class Repetition:
    """The repeated part of a text.

    Attributes:
        share: of its words, from 0 to 1, those that repeat ``_WINDOW`` words of before. words: how many words it has.
        line: where the longest repetition begins, from 1; 0 without one.
    """

    share: float
    words: int
    line: int


def measure_repetition(text: str) -> Repetition:
    """Return how much of a text outside of code repeats earlier words of it. Takes time in proportion to its length."""
    out = parse(text).out
    code = lines_of(out.fenced)
    words, lines = list[str](), list[int]()
    for number, line in enumerate(out.lines):
        if number not in code:
            found = _WORD.findall(line.casefold())
            words += found
            lines += [number + 1] * len(found)
    if len(words) < _WINDOW:
        return Repetition(0.0, len(words), 0)
    known = set[int]()
    again = run = longest = place = 0
    for at in range(len(words) - _WINDOW + 1):
        window = hash(tuple(words[at : at + _WINDOW]))
        run = run + 1 if window in known else 0
        known.add(window)
        again += run > 0
        if run > longest:
            longest, place = run, at - run + 1
    return Repetition(again / (len(words) - _WINDOW + 1), len(words), lines[place] if again else 0)


def repeated_percent(text: str) -> int:
    """Return how much of a text is repetition, in per cent; 0 where that is no more than in ordinary texts."""
    found = measure_repetition(text)
    percent = round(100 * found.share)
    return percent if found.words >= MIN_WORDS and percent > MOST_PERCENT else 0

"""Repetition in a text, as written by models caught in a loop."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import lines_in_spans

#: Words compared at a time. In scripts without spaces, letters count as words.
_WINDOW = 8
#: Shortest text measured, in words, and the share that ordinary texts repeat at most, in per cent.
MIN_WORDS, MOST_PERCENT = 100, 60
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")


@dataclass(frozen=True, slots=True)
class Repetition:
    """The result of measuring how much a text repeats itself.

    ``share`` is the repeated share of ``words``, from 0 to 1; ``line`` is where the longest repetition begins.
    """

    share: float
    words: int
    line: int


def measure_repetition(text: str) -> Repetition:
    """Return how much of a text repeats earlier words, in linear time. Code is ignored."""
    out = parse_document(text).out
    code = lines_in_spans(out.fenced)
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
    """Return the repeated share of a text in per cent, or 0 if it is not higher than in ordinary texts."""
    found = measure_repetition(text)
    percent = round(100 * found.share)
    return percent if found.words >= MIN_WORDS and percent > MOST_PERCENT else 0

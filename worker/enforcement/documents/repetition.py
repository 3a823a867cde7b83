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
#: Texts with fewer characters may have too few words.
_SHORT = 10 * MIN_WORDS
#: The same words five times in a row are a loop, if that makes 150 words or more, however long the rest is.
_LOOP_WORDS, _LOOP_TIMES = 150, 5
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U0001f300-\U0001faff]|\w{1,40}")
#: The number of a list's item.
_COUNTER = re.compile(r"\s{0,20}\d{1,9}[.)]\s")


@dataclass(frozen=True, slots=True)
class Repetition:
    """Measures of how much a text repeats itself.

    ``share`` is the repeated share of ``words``, from 0 to 1; ``line`` is where the longest repetition begins;
    ``loops``: a part of the text says the same again and again.
    """

    share: float
    words: int
    line: int
    loops: bool = False

    def exceeds(self, percent: int, words: int = MIN_WORDS) -> bool:
        """Return True if a text of at least ``words`` words loops, or if more than ``percent`` of it is repeated."""
        return self.words >= words and (self.loops or round(100 * self.share) > percent)


def measure_repetition(text: str) -> Repetition:
    """Return how much of a text repeats earlier words, in linear time. Code is ignored."""
    out = parse_document(text).out
    code = lines_in_spans((fence.start, fence.end) for fence in out.fences if fence.closed)
    words, lines = list[str](), list[int]()
    for number, line in enumerate(out.lines):
        if number not in code:
            found = _WORD.findall(_COUNTER.sub("", line.casefold(), count=1))
            words += found
            lines += [number + 1] * len(found)
    if len(words) < _WINDOW:
        return Repetition(0.0, len(words), 0)
    known = dict[int, int]()
    again = run = longest = place = streak = period = 0
    loops = False
    for at in range(len(words) - _WINDOW + 1):
        window = hash(tuple(words[at : at + _WINDOW]))
        back = at - known.get(window, at)
        known[window] = at
        run = run + 1 if back else 0
        streak, period = (streak + 1 if back == period else 1) if back else 0, back
        again += run > 0
        loops = loops or (streak >= _LOOP_WORDS and streak >= (_LOOP_TIMES - 1) * period)
        if run > longest:
            longest, place = run, at - run + 1
    return Repetition(again / (len(words) - _WINDOW + 1), len(words), lines[place] if again else 0, loops)


def repeated_percent(text: str) -> int:
    """Return how much of a text repeats earlier text, in per cent, or 0 if that is no more than usual in prose."""
    if len(text) < _SHORT and len(_WORD.findall(text)) < MIN_WORDS:  # most answers need no outline for this
        return 0
    found = measure_repetition(text)
    return round(100 * found.share) if found.exceeds(MOST_PERCENT) else 0

"""Continuation of a truncated answer: choose the text to continue, and append the agent's reply. Pure.

Source: ADR-036; docs/enforcement.md, "Going on after a break".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from api_client.contract.reasoning import remove_reasoning
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import may_hold_fences

#: A shorter text is not worth continuing, in characters.
LEAST = 80
#: Limits of a quoted text end: lines, characters of the last line, characters in all.
_LINES, _LAST_LINE, _QUOTE = 3, 160, 320
#: Most trailing lines without words; fewest letters of a line with words and of a seam.
_MOST_MARKS, _LETTERS = 50, 3
#: After this many runs in a row without progress, the whole answer is asked for.
_MOST_STALLS = 2
#: Least share of the old length that a restarted answer must have, and of each section and of the words.
_WHOLE, _SHARE = 0.9, 0.7

_WORD = re.compile(r"\w+")
_ADR_ID = re.compile(r"^[\"']?adr_id[\"']?[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ContinuedText:
    """The text that results from joining a truncated answer with the agent's continuation.

    Attributes:
        kept: how many characters of the truncated text were kept; 0 if the agent started over.
        fits: False if the reply does not continue the text; then ``text`` is the truncated text.
    """

    text: str
    kept: int
    fits: bool = True


def find_unfinished_text(history: Sequence[Attempt]) -> str:
    """Return the truncated text that the agent should continue, or an empty string if a new answer is needed."""
    texts = [attempt.text for attempt in itertools.takewhile(lambda a: not a.complete, reversed(history))]
    broken = [len(trim_partial_marks(text)) for text in texts]
    if not broken or broken[0] < LEAST:
        return ""
    stalls = itertools.takewhile(lambda pair: pair[0] <= pair[1], itertools.pairwise(broken))
    return "" if len(list(stalls)) >= _MOST_STALLS else texts[0]


def trim_partial_marks(text: str) -> str:
    """Return a truncated text without the wordless lines at its end, such as an incomplete ``#``."""
    for _ in range(_MOST_MARKS):
        start = text.rstrip().rfind("\n") + 1
        if _count_letters(text[start:]) >= _LETTERS:
            return text
        text = text[:start]
        if not text:
            break
    return ""


def quote_last_lines(text: str) -> str:
    """Return the last lines of a text, or the last words of a long last line, for quoting in a prompt."""
    lines = text.rstrip().split("\n")
    last = lines[-1]
    if len(last) > _LAST_LINE:
        return last[-_LAST_LINE:].partition(" ")[2] or last[-_LAST_LINE:]
    quoted = last
    for line in reversed(lines[-_LINES:-1]):
        if len(line) + len(quoted) > _QUOTE:
            break
        quoted = f"{line}\n{quoted}"
    return quoted.lstrip("\n")


def append_continuation(so_far: str, reply: str, *, complete: bool = True) -> ContinuedText:
    """Append a reply to the truncated text that it continues, and return the joined text.

    ``complete``: the agent finished this reply. Apart from reasoning, the reply must begin with the quoted lines, or
    with the last one. A reply that starts over replaces the text, unless it lacks earlier content.
    """
    base = trim_partial_marks(so_far).rstrip()
    end = base.replace("\r\n", "\n")
    # In code, a tag of reasoning may be text: only a reply that does not begin as asked is read without its reasoning.
    rest = _cut_seam(end, reply.replace("\r\n", "\n")) or _cut_seam(
        end, remove_reasoning(reply).text.replace("\r\n", "\n")
    )
    if rest.strip():
        eol = "\r\n" if "\r\n" in (so_far if "\n" in so_far else reply) else "\n"
        joined = ContinuedText(base + rest.replace("\n", eol), len(base))
    else:
        joined = ContinuedText(reply, 0, fits=bool(reply.strip()) and not rest and not is_shortened(so_far, reply))
    unfinished = complete and _in_fence(base) and _in_fence(joined.text)
    if not joined.fits or unfinished or (not complete and len(joined.text) < len(so_far)):
        return ContinuedText(so_far, len(so_far), fits=False)
    return joined


def is_shortened(before: str, after: str) -> bool:
    """Return True if the new text lacks the header, a section or many of the words of the old text."""
    if len(after.strip()) < _WHOLE * len(before.strip()) or (_ADR_ID.search(before) and not _ADR_ID.search(after)):
        return True
    words = set(_WORD.findall(before.casefold()))
    if len(words & set(_WORD.findall(after.casefold()))) < _SHARE * len(words):
        return True
    new, old = dict(_split_sections(after)), list(_split_sections(before))
    if "\n" not in old[-1][1]:  # perhaps half a heading
        old.pop()
    return any(title and len(new.get(title, "")) < _SHARE * len(body) for title, body in old)


def _cut_seam(base: str, reply: str) -> str:
    quoted = quote_last_lines(base)
    for text in (reply, re.sub(r"^> ?", "", reply.lstrip(), count=quoted.count("\n") + 1, flags=re.MULTILINE)):
        for seam in (quoted, quoted.rpartition("\n")[2]):
            if _count_letters(seam) >= _LETTERS and text.lstrip().startswith(seam.lstrip()):
                return text.lstrip()[len(seam.lstrip()) :]
    return ""


def _in_fence(text: str) -> bool:
    fences = parse_document(text).out.fences if may_hold_fences(text) else []
    return bool(fences) and not fences[-1].closed and fences[-1].end == text.count("\n") + 1


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    document = parse_document(text)
    tops = [heading for heading in document.out.headings if heading.top and heading.level <= 2]
    places = [(0, ""), *((document.position_of(heading.line), heading.title) for heading in tops)]
    for (at, title), end in zip(places, [*[at for at, _ in places[1:]], len(text)], strict=True):
        yield " ".join(_WORD.findall(title.casefold())), text[at:end].strip()


def _count_letters(text: str) -> int:
    return sum(char.isalnum() for char in text)

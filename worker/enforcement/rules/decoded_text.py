"""A text as its readers see it: without escapes, entities, tags and invisible characters. Places map to the source."""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

#: Escapes of JSON, Python and URLs; entities; tags; escaped line ends; other backslashes; invisible and wide letters.
_CODED = re.compile(
    r"\\+(?:u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2}))|%([0-9A-Fa-f]{2})"
    r"|\\+([01][0-7]{2})|(&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w{1,30});)"
    r"|(</?(?i:br|p|div|li|[uo]l|t[dhr]|table|pre|h[1-6])\b[^<>\n]{0,80}>(?:\r?\n)?|\\+[nrt])|</?[A-Za-z][^<>\n]{0,80}>|\\+"
    r"|[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]+"
)
_BASES = (16, 16, 16, 16, 16, 8)
_WIDE, _NARROW = re.compile("[\uff01-\uff5e]"), {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
#: Texts are escaped at most so often.
_PASSES = 4


@dataclass(frozen=True, slots=True)
class DecodedText:
    """A text after decoding, which can find where its characters are in the source.

    For each pass of decoding, ``replaced`` lists each replaced piece: its position, length and source range.
    """

    text: str
    replaced: tuple[list[tuple[int, int, int, int]], ...] = field(default=())

    def substitute(self, pattern: re.Pattern[str], write: Callable[[re.Match[str]], str]) -> DecodedText:
        pieces, made, length, done = list[str](), list[tuple[int, int, int, int]](), 0, 0
        for found in pattern.finditer(self.text):
            piece, (start, end) = write(found), found.span()
            pieces += (self.text[done:start], piece)
            length += start - done
            made.append((length, len(piece), start, end))
            length, done = length + len(piece), end
        if not made:
            return self
        return DecodedText("".join((*pieces, self.text[done:])), (*self.replaced, made))

    def find_source(self, start: int, end: int) -> tuple[int, int]:
        """Return the start and end in the source for a non-empty range of the decoded text."""
        first, last = start, end - 1
        for made in reversed(self.replaced):
            first, last = _step_back(made, first)[0], _step_back(made, last)[1]
        return first, last + 1


def _step_back(made: list[tuple[int, int, int, int]], place: int) -> tuple[int, int]:
    at = bisect_right(made, place, key=lambda piece: piece[0]) - 1
    if at < 0:
        return place, place
    begin, length, first, end = made[at]
    behind = place - begin - length
    return (first, end - 1) if behind < 0 else (end + behind, end + behind)


@lru_cache(maxsize=2)
def decode_text(text: str) -> DecodedText:
    """Decode the escapes of JSON, Python, URLs and HTML in a text, and remove tags and invisible characters."""
    decoded = DecodedText(text)
    for _ in range(_PASSES):
        before, decoded = decoded, decoded.substitute(_CODED, _decode)
        if _WIDE.search(decoded.text):  # places stay
            decoded = replace(decoded, text=decoded.text.translate(_NARROW))
        if decoded is before:
            break
    return decoded


def _decode(found: re.Match[str]) -> str:
    group = found.lastindex or 0
    if 0 < group <= len(_BASES):
        code = int(found[group], _BASES[group - 1])
        return chr(code) if code < 0x110000 else ""
    return html.unescape(found[group]) if group == len(_BASES) + 1 else "\n" if group else ""

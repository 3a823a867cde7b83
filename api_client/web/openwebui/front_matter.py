"""Puts the YAML headers of an answer inside code fences, because Markdown draws them as headings.

A header counts at the beginning of an answer; further down, only the header of another ADR counts.
"""

from __future__ import annotations

import re

from api_client.contract.growing_text import fence_after

_TICKS = "````"
_OPEN, _CLOSE = f"{_TICKS}yaml\n", f"\n{_TICKS}"
_KEY = r"[A-Za-z_][\w-]{0,60}[ \t]{0,9}:"
_RULE = re.compile(r"---[ \t]{0,9}\r?")
_BEGIN = re.compile(rf"\s{{0,99}}(?={_RULE.pattern}\n{_KEY})")
#: Text that may become the beginning of a header.
_MAYBE_HEADER = re.compile(r"\s{0,99}(?:-{1,3}|---[ \t]{0,9}\r?(?:\n(?:[A-Za-z_][\w-]{0,60}[ \t]{0,9})?)?)?\Z")
_CLOSING = re.compile(rf"\n{_RULE.pattern}(?=\n|\Z)")
_FENCED = re.compile(rf"\s{{0,99}}(?={_OPEN}---)")
_FENCE_END = re.compile(rf"\n{_RULE.pattern}(\n{_TICKS})(?=\n|\Z)")
_ADR = "adr_id:"
_GAP = r"\n[ \t]{0,99}\r?\n"
_EMPTY_LINE = re.compile(_GAP)
_FURTHER = re.compile(rf"{_GAP}(?={_RULE.pattern}\n{_ADR})")
_FURTHER_FENCED = re.compile(rf"{_GAP}(?={_OPEN}{_RULE.pattern}\n{_ADR})")
_FURTHER_BEGIN = re.compile(rf"{_RULE.pattern}\n{_ADR}")
_FURTHER_MAYBE = re.compile(
    r"(?:-{1,3}|---[ \t]{0,9}\r?(?:\n(?:" + "|".join(_ADR[:size] for size in range(len(_ADR) - 1, 0, -1)) + r")?)?)\Z"
)
_RULE_LINE = "---"
_CODE = re.compile(r"^[ \t>]{0,32}(?:[-*+][ \t]{1,4})?(?:`{3,}|~{3,}).*$", re.MULTILINE)
_LINE_CHARS = 200


def fence_headers(text: str) -> str:
    """Put each YAML header in a Markdown text into a code fence, so that it is not shown as a heading."""
    shown, done = [], 0
    for start, end in _find_headers(text):
        shown += [text[done:start], _OPEN, text[start:end], _CLOSE]
        done = end
    return "".join([*shown, text[done:]])


def _find_headers(text: str) -> list[tuple[int, int]]:
    begin = _BEGIN.match(text)
    first = _find_header_end(text, begin.end()) if begin else None
    found, done, code = ([first], first[1], "") if first else ([], 0, "")
    fences = _CODE.finditer(text, done)
    fence = next(fences, None)
    for gap in _FURTHER.finditer(text, done) if _ADR in text else ():
        while fence and fence.start() < gap.end():
            if fence.start() >= done:
                code = fence_after(code, fence[0][:_LINE_CHARS])[0]
            fence = next(fences, None)
        header = _find_header_end(text, gap.end()) if not code and gap.end() >= done else None
        if header and not _EMPTY_LINE.search(text, *header):
            found.append(header)
            done = header[1]
    return found


def _find_header_end(text: str, start: int) -> tuple[int, int] | None:
    end = _CLOSING.search(text, start)
    return (start, end.end()) if end and _TICKS not in text[start : end.end()] else None


def unfence_headers(text: str) -> str:
    """Remove the code fences that ``fence_headers`` added around YAML headers."""
    kept: list[str] = []
    done, begin = 0, _FENCED.match(text) or _FURTHER_FENCED.search(text)
    while begin:
        kept.append(text[done : begin.end()])
        done = begin.end() + len(_OPEN)
        if end := _FENCE_END.search(text, done):
            kept.append(text[done : end.start(1)])
            done = end.end(1)
        begin = _FURTHER_FENCED.search(text, done)
    return "".join([*kept, text[done:]])


class HeaderFencer:
    """Puts YAML headers into code fences, in a text that arrives in pieces."""

    def __init__(self) -> None:
        self._held_back = ""  # text that may become the beginning of a header
        self._inside_header = self._has_begun = False
        self._line = ""  # the beginning of the last line; inside a header, the whole line
        self._open_fence_mark, self._after_empty_line = "", False  # the open fence; True if the line before is empty

    def feed(self, piece: str) -> str:
        """Add a piece of the text and return the text that can be shown now."""
        if self._inside_header:
            return self._feed_header(piece)
        if self._has_begun:
            return self._feed_text(piece)
        self._held_back += piece
        if begin := _BEGIN.match(self._held_back):
            self._has_begun, text = True, self._held_back
            return text[: begin.end()] + self._open_fence(text[begin.end() :])
        if _MAYBE_HEADER.match(self._held_back):
            return ""
        self._has_begun, text, self._held_back = True, self._held_back, ""
        return self._feed_text(text)

    def _open_fence(self, text: str) -> str:
        self._inside_header, self._held_back, self._line = True, "", ""
        return _OPEN + self._feed_header(text)

    def _feed_header(self, piece: str) -> str:
        text = self._line + piece
        end = _CLOSING_LINE.search(text)
        if end is None:
            self._line = text[max(text.rfind("\n"), 0) :]
            return piece
        shown = text[len(self._line) : end.end(1)] + _CLOSE
        self._inside_header, self._line, self._after_empty_line = False, _RULE_LINE, False
        return shown + self._feed_text(text[end.end(1) :])

    def _feed_text(self, piece: str) -> str:
        shown: list[str] = []
        text, self._held_back = self._held_back + piece, ""
        while text:
            if not self._line and self._after_empty_line and not self._open_fence_mark:
                if _FURTHER_BEGIN.match(text):
                    return "".join([*shown, self._open_fence(text)])
                if _FURTHER_MAYBE.match(text):
                    self._held_back = text
                    break
            line, end, text = text.partition("\n")
            shown.append(line + end)
            self._line = (self._line + line)[:_LINE_CHARS]
            if end:
                self._after_empty_line = not self._line.strip()
                self._open_fence_mark, self._line = fence_after(self._open_fence_mark, self._line)[0], ""
        return "".join(shown)


#: The closing line with its line end: until then, the line may grow.
_CLOSING_LINE = re.compile(rf"(\n{_RULE.pattern})\n")

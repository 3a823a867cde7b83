"""Makes the outline of a Markdown text: one pass, linear time.

These are CommonMark 0.31's block rules (containers, leaves, interruption, lazy continuation) without inlines and
tokens. markdown-it-py is the referee: tests hold every outline against its parse. It is not used on the hot path,
because it needs 0.5 ms for 4 kB, 340 ms for 1 MB, and more than linear time for long lists (measured), while an
answer is foreign input of up to megabytes. Its tables of HTML blocks are used as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from markdown_it.rules_block.html_block import HTML_SEQUENCES

from worker.enforcement.markdown.nesting import FENCE, document_end
from worker.enforcement.markdown.outline import BOM, Fence, Heading, Outline

#: Containers deeper than this are text, as in markdown-it's CommonMark preset.
MAX_NESTING = 20
#: HTML blocks are recognised by the first characters of a line only, so that a line of a megabyte costs nothing.
_HTML_PREFIX = 1000

_ATX = re.compile(r"(#{1,6})(?:[ \t]+|$)")
_ATX_END = re.compile(r"(?:^|[ \t])#+$")
_ITEM = re.compile(r"([-*+]|(\d{1,9})[.)])( +|$)")
#: A container on the stack is a block quote, or a list item: then the number is its content's indentation.
_QUOTE = 0

#: Given the lines and a line that reads ``---``: the line after the header that starts there, or 0 for none.
HeaderEnd = Callable[[list[str], int], int]


def outline(text: str, header: HeaderEnd | None = None) -> Outline:
    """The outline of a text.

    Args:
        text: Markdown; lines end with LF or CRLF.
        header: recognises front matter, which is YAML and no Markdown; None to know of none.
    """
    scanner = _Scanner(text.split("\n"), header)
    scanner.run()
    return scanner.out


class _Scanner:
    """CommonMark's first phase: containers are matched line by line, then leaves are opened and closed."""

    def __init__(self, lines: list[str], header: HeaderEnd | None) -> None:
        self.out = Outline(lines)
        self.header = header
        self.stack: list[int] = []
        self.quoted = 0
        self.hollow = -1  # depth of a list item that has no content yet
        self.paragraph = -1  # first line of the open paragraph
        self.fence: Fence | None = None
        self.mark = ""  # the open fence's characters
        self.html: re.Pattern[str] | None = None  # what ends the open HTML block
        self.balanced = True  # no document fence was found to be without an end
        self.alone = True  # no document fence came before

    def run(self) -> None:
        """Scan all lines. Lines that cannot open, close or continue anything but a paragraph take the short way."""
        lines, number, count = self.out.lines, 0, len(self.out.lines)
        while number < count:
            raw = lines[number] if number else lines[0].removeprefix(BOM)
            if self.stack:
                if raw and raw[0].isalpha():
                    number = self._outdented(number)
                    continue
            elif self.fence is not None:
                if not raw.lstrip(" ").startswith(self.mark):
                    number += 1
                    continue
            elif self.html is None:
                if not raw or raw == "\r":
                    self._end_paragraph(number)
                    number += 1
                    continue
                if raw[0].isalpha():
                    if self.paragraph < 0:
                        self.paragraph = number
                    number += 1
                    continue
            if raw[0:3] == "---" and self.header is not None and raw.rstrip() == "---":
                end = self._front_matter(number)
                if end:
                    number = end
                    continue
            number = self._line(number, raw)
        self._close_leaf(count)

    def _front_matter(self, number: int) -> int:
        """The line after the header that starts here; 0 for none. It ends every list and quote, but no open block."""
        if self.header is None or (not self.stack and (self.fence is not None or self.html is not None)):
            return 0
        end = self.header(self.out.lines, number)
        if end:
            self._close_leaf(number)
            self._unwind(0, number)
            self.out.headers.append((number, end))
        return end

    def _outdented(self, number: int) -> int:
        """A letter in the first column: it continues the open paragraph, or ends every list and quote there is."""
        if self.paragraph >= 0:
            return self._marked(number)
        self._close_leaf(number)
        self._unwind(0, number)
        self.paragraph = number
        return number + 1

    def _line(self, number: int, raw: str) -> int:
        """Scan one line; returns the number of the next."""
        line = raw.rstrip("\r")
        if "\t" in line:
            line = line.expandtabs(4)
        blank = not line.strip(" ")
        if blank and self.hollow < 0 and not self.quoted and self.fence is None and self.html is None:
            self._end_paragraph(number)  # lists go on over blank lines
            return number + 1
        pos, matched = self._match(line, blank)
        if matched < len(self.stack):
            if self.fence is not None or self.html is not None:
                self._close_leaf(number)
        elif self.fence is not None:
            self._in_fence(number, line, pos)
            return self._marked(number)
        elif self.html is not None:
            if self.html.search(line[pos:].strip(" ")):
                self.html = None
            return self._marked(number)
        if blank:
            self._unwind(matched, number)
            return self._marked(number)
        following = self._open(number, line, pos, matched)
        self._marked(number)
        return following

    def _match(self, line: str, blank: bool) -> tuple[int, int]:
        """How far the open containers go on in this line: position in the line, number of containers."""
        pos = 0
        for depth, width in enumerate(self.stack):
            if width == _QUOTE:
                mark = _skip(line, pos)
                if mark - pos > 3 or line[mark : mark + 1] != ">":
                    return pos, depth
                pos = mark + 1
                if line[pos : pos + 1] == " ":
                    pos += 1
            elif blank or not line[pos:].strip(" "):
                if depth == self.hollow:
                    return pos, depth
            elif _skip(line, pos) - pos >= width:
                pos += width
            else:
                return pos, depth
        return pos, len(self.stack)

    def _open(self, number: int, line: str, pos: int, matched: int) -> int:
        """Open what starts in this line, containers first; what opens nothing is a paragraph's text."""
        while True:
            start = _skip(line, pos)
            if start == len(line):  # a container opened, and nothing follows it
                return number + 1
            direct = self.paragraph >= 0 and matched == len(self.stack)
            if start - pos >= 4:
                if self.paragraph < 0:
                    self._unwind(matched, number)
                    self.hollow = -1
                    _extend(self.out.indented, number)
                return number + 1
            char = line[start]
            if char == ">" and matched < MAX_NESTING:
                self._unwind(matched, number)
                self._push(_QUOTE)
                pos = start + 2 if line[start + 1 : start + 2] == " " else start + 1
                matched += 1
                continue
            if char in "#`~<=-*_+0123456789":
                if char not in "+0123456789" and self._leaf(number, line, start, matched, direct):
                    return self._skip_document(number)
                width = self._item(line, start, direct) if matched < MAX_NESTING else 0
                if width:
                    self._unwind(matched, number)
                    self._push(start - pos + width)
                    self.hollow = matched
                    matched += 1
                    pos = min(start + width, len(line))
                    continue
            break
        if self.paragraph < 0:
            self._unwind(matched, number)
            self.paragraph = number
        self.hollow = -1
        return number + 1

    def _leaf(self, number: int, line: str, start: int, matched: int, direct: bool) -> bool:
        """Open the heading, fence, HTML block or rule that starts here, if one does."""
        char, rest = line[start], line[start:].rstrip(" ")
        if char == "#" and (found := _ATX.match(rest)):
            self._unwind(matched, number)
            self._heading(len(found[1]), _ATX_END.sub("", rest[found.end() :]).strip(), number)
        elif char in "`~" and (found := FENCE.match(rest)):
            self._unwind(matched, number)
            self.mark = found[1] or found[3]
            info = (found[2] or found[4] or "").strip()
            self.fence = Fence(info, number, number, closed=False, indent=start, top=not self.stack)
        elif char == "<" and (end := _html_end(rest, interrupts=self.paragraph >= 0)):
            self._unwind(matched, number)
            self.html = None if end.search(rest) else end
        elif char in "=-" and direct and rest == char * len(rest):
            title = "\n".join(self.out.lines[self.paragraph : number]).removeprefix(BOM).strip()
            first = self.paragraph
            self._unwind(matched, number)
            self.out.headings.append(Heading(1 if char == "=" else 2, title, first, top=not self.stack))
        elif char in "-*_" and _is_rule(rest):
            self._unwind(matched, number)
        else:
            return False
        self.hollow = -1
        return True

    def _item(self, line: str, start: int, direct: bool) -> int:
        """Width of the list item that starts here: its marker and the blanks that belong to it; 0 for none."""
        found = _ITEM.match(line, start)
        if found is None:
            return 0
        empty = found.end() == len(line)
        if direct and (empty or (found[2] and int(found[2]) != 1)):
            return 0  # such an item cannot interrupt a paragraph
        blanks = len(found[3])
        return len(found[1]) + (blanks if 1 <= blanks <= 4 and not empty else 1)

    def _in_fence(self, number: int, line: str, pos: int) -> None:
        start = _skip(line, pos)
        if not line.startswith(self.mark, start):
            return
        run = line[start:].rstrip(" ")
        if start - pos < 4 and run == self.mark[0] * len(run) and self.fence is not None:
            self.fence.end, self.fence.closed = number + 1, True
            self.out.fences.append(self.fence)
            self.fence = None

    def _skip_document(self, number: int) -> int:
        """The next line to scan: the one after this, or after the ADR that this line's ```markdown fence holds."""
        fence = self.fence
        if fence is None or self.header is None or not (fence.is_document and fence.top and self.balanced):
            return number + 1
        end = document_end(self.out.lines, number, self.mark, alone=self.alone)
        self.alone = self.alone and end == 0
        self.balanced = end >= 0  # one vain search to the end of the text is enough
        if end <= 0:
            return number + 1
        fence.end, fence.closed = end, True
        self.out.fences.append(fence)
        self.fence = None
        return end

    def _heading(self, level: int, title: str, number: int) -> None:
        self.out.headings.append(Heading(level, title, number, top=not self.stack))

    def _push(self, container: int) -> None:
        self.hollow = -1
        self.stack.append(container)
        self.quoted += container == _QUOTE

    def _unwind(self, matched: int, number: int) -> None:
        """Close the containers that do not go on, and the open paragraph."""
        self._end_paragraph(number)
        if matched < len(self.stack):
            self.quoted -= self.stack[matched:].count(_QUOTE)
            del self.stack[matched:]
            if self.hollow >= matched:
                self.hollow = -1

    def _end_paragraph(self, number: int) -> None:
        if self.paragraph >= 0:
            self.out.paragraphs.append((self.paragraph, number))
            self.paragraph = -1

    def _close_leaf(self, number: int) -> None:
        """Close whatever leaf is open: its container ended, or the text."""
        self._end_paragraph(number)
        self.html = None
        if self.fence is not None:
            self.fence.end = number
            self.out.fences.append(self.fence)
            self.fence = None

    def _marked(self, number: int) -> int:
        if self.quoted:
            _extend(self.out.quotes, number)
        return number + 1


def _skip(line: str, pos: int) -> int:
    """The first position from ``pos`` on that is not a blank."""
    end = len(line)
    while pos < end and line[pos] == " ":
        pos += 1
    return pos


def _extend(ranges: list[tuple[int, int]], number: int) -> None:
    """Add a line to the last range when it follows it, else as its own range."""
    if ranges and ranges[-1][1] == number:
        ranges[-1] = (ranges[-1][0], number + 1)
    else:
        ranges.append((number, number + 1))


def _html_end(rest: str, *, interrupts: bool) -> re.Pattern[str] | None:
    """What ends the HTML block that this line starts; None when it starts none."""
    head = rest[:_HTML_PREFIX]
    for opening, closing, may_interrupt in HTML_SEQUENCES:
        if opening.search(head):
            return closing if may_interrupt or not interrupts else None
    return None


def _is_rule(line: str) -> bool:
    """True for a thematic break: three or more of one of ``-*_``, with nothing but blanks between them."""
    if len(line) < 3:
        return False
    marks = line.replace(" ", "").replace("\t", "").rstrip("\r")
    return len(marks) > 2 and marks[0] in "-*_" and marks == marks[0] * len(marks)

"""Continuation of a truncated answer: choose the text to continue, and append the agent's reply. Pure.

Source: ADR-036; docs/enforcement.md, "Going on after a break".
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import may_hold_fences
from worker.enforcement.replies.vocabulary import profile_vocabulary

#: A shorter text is not worth continuing, in characters.
LEAST = 80
#: Limits of a quoted text end: lines, characters of the last line, characters in all.
_LINES, _LAST_LINE, _QUOTE = 3, 160, 320
#: Most trailing lines without words; most lines of talk before a continuation; most characters of an announcement and
#: of other talk; letters that must match after doubtful talk.
_MOST_MARKS, _PRELUDE, _PRELUDE_LINE, _SHORT_LINE, _SURELY = 50, 4, 200, 60, 16
#: After this many runs in a row without progress, the whole answer is asked for.
_MOST_STALLS = 2
#: A shorter seam may be half a mark; one with fewer letters may begin another version, too.
_SEAM = 3
#: Least share of the old length that a restarted answer must have, and of each section and of the words.
_WHOLE, _SHARE = 0.9, 0.7
#: Restarted answers: words compared, words at the very start, least similarity.
_WORDS, _FIRST, _ALIKE = 40, 5, 0.7

_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"(#{1,2})[ \t]+(\S.*)")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})[ \t]*([\w+-]{0,20})[ \t]*$")
_ADR_ID = re.compile(r"^[\"']?adr_id[\"']?[ \t]*:", re.MULTILINE)
_GOES_ON = re.compile(r"\b(?:weiter\w*|fort\w*|fahre|rest|continu\w*|go(?:es|ing)? on)\b", re.IGNORECASE)
_MARKER = re.compile(r"<!--\s{0,40}STEP\b[^>]{0,200}-->", re.IGNORECASE)
_ROW = re.compile(r"[ \t]*(?:\||[-*+][ \t]|\d{1,9}[.)][ \t])")
_BEGINS = re.compile(r"[ \t]*(?:[-*+][ \t]|\d{1,9}[.)][ \t]|#{1,6}[ \t]|`{3,}|~{3,}|<!--)")
_OPENING = tuple("([{-/\"'`*_|#>„“‚«")
_SENTENCE_END = tuple(".!?:;|`)]}»“”\"'*_>")


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
    """Return the truncated text that the agent should continue, or an empty string if a whole new answer is needed."""
    texts = [attempt.text for attempt in itertools.takewhile(lambda a: not a.complete, reversed(history))]
    broken = [len(trim_partial_marks(text)) for text in texts]
    if not broken or broken[0] < LEAST:
        return ""
    stalls = itertools.takewhile(lambda pair: pair[0] <= pair[1], itertools.pairwise(broken))
    return "" if len(list(stalls)) >= _MOST_STALLS else texts[0]


def trim_partial_marks(text: str) -> str:
    """Return a truncated text without trailing lines that have no words, such as an incomplete ``#``."""
    for _ in range(_MOST_MARKS):
        start = text.rstrip().rfind("\n") + 1
        if _count_letters(text[start:]) >= 3:
            return text
        text = text[:start]
        if not text:
            break
    return ""


def quote_last_lines(text: str) -> str:
    """Return the last lines of a text, or the last words if the last line is long, so that a prompt can quote them."""
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
    """Append the agent's reply to the truncated text that it continues, and return the joined text.

    Repeated lines, talk before the continuation and a fence around it are dropped. If the agent started over, the new
    version replaces the old text from that point, unless it lacks earlier content.
    """
    ours = so_far.removesuffix("\r").replace("\r\n", "\n") + ("\n" if so_far.endswith("\r") else "")
    theirs = reply.removeprefix("\n") if so_far.endswith("\r") else reply
    joined = _join_texts(ours, theirs.replace("\r\n", "\n"), complete) if reply.strip() else None
    if joined is None or (not complete and len(joined.text) < len(ours)):
        return ContinuedText(so_far, len(so_far), fits=False)
    return _restore_line_ends(so_far, ours, joined, reply)


def _restore_line_ends(so_far: str, ours: str, joined: ContinuedText, reply: str) -> ContinuedText:
    ending = so_far if "\n" in so_far or so_far.endswith("\r") else reply
    eol = "\r\n" if "\r\n" in ending or so_far.endswith("\r") else "\n"
    added = joined.text[joined.kept :].replace("\n", eol)
    if joined.kept == len(ours):
        return ContinuedText(so_far + ("\n" if so_far.endswith("\r") else "") + added, len(so_far))
    kept = joined.kept
    for found in re.finditer("\r\n", so_far):
        if found.start() >= kept:
            break
        kept += 1
    return ContinuedText(so_far[:kept] + added, kept)


def is_shortened(before: str, after: str) -> bool:
    """Return True if the new text lacks the header, a section or many of the words of the old text."""
    if len(after.strip()) < _WHOLE * len(before.strip()) or (_ADR_ID.search(before) and not _ADR_ID.search(after)):
        return True
    words = set(_WORD.findall(before.casefold()))
    if len(words & set(_WORD.findall(after.casefold()))) < _SHARE * len(words):
        return True
    new, old = dict(_split_sections(after)), list(_split_sections(before))
    return any(title and len(new.get(title, "")) < _SHARE * len(body) for title, body in old)


def _join_texts(so_far: str, reply: str, complete: bool) -> ContinuedText | None:
    if seamed := _append_from_seam(so_far, reply):
        return None if _is_talk_about_answer(seamed.text[seamed.kept :], so_far) else seamed
    start, surely = 0, trim_partial_marks(so_far)
    for start, least in _find_starts(so_far, reply):
        piece = reply[start:]
        for base in dict.fromkeys((surely, so_far)):
            if base and (end := _repeated_length(base, piece, least)) is not None:
                whole = _append_rest(base, _unwrap_fence(so_far, reply, start, piece[end:]))
                if base == surely or _is_mark(surely, whole.text[len(surely) :]):
                    return None if _is_talk_about_answer(whole.text[whole.kept :], so_far) else whole
        if (kept := _find_restart(so_far, piece)) is not None:
            text = so_far[:kept] + (piece if kept else reply)
            return None if is_shortened(so_far, text) else ContinuedText(text, kept)
        if least:
            start = 0
    rest = _unwrap_fence(so_far, reply, start, reply[start:])
    half = so_far[len(surely) :].strip("\n")
    again = not half.startswith("#") and _BEGINS.match(f"{half} ") is not None
    anew = half and _BEGINS.match(rest) and (again or not _is_mark(surely, half + rest))
    return _append_unrepeated(surely if anew else so_far, rest, complete)


def _append_from_seam(so_far: str, reply: str) -> ContinuedText | None:
    """Append a reply that begins by repeating the quoted end of the text exactly; return None for any other reply."""
    base = so_far.rstrip()
    quoted = quote_last_lines(base)
    begins = [len(base) - len(quoted), *(len(base) - len(quoted) + found.end() for found in re.finditer("\n", quoted))]
    for begin in begins:
        seam = base[begin:]
        is_short = len(seam.strip()) < _SEAM and not seam.lstrip().startswith("|")
        if is_short or not reply.startswith(seam):
            continue
        if _count_letters(seam) < _SEAM and "\n" not in seam and _find_restart(so_far, reply) is not None:
            return None
        return _append_rest(so_far, reply[len(seam) :])
    return None


def _is_mark(before: str, text: str) -> bool:
    """Return True if a text before and after a break form a Markdown mark, such as ``# Title`` or a code fence."""
    line = text.lstrip("\n").partition("\n")[0].strip()
    if line.startswith("# "):
        return not any(True for _ in _find_headings(before))  # an answer has one title, and it comes first
    if line.startswith("`"):
        return line.startswith("```") or not (line.startswith("``") or line.count("`") % 2)
    if line.startswith("|") and set(line) <= set("|-: ") and _is_row(row := _last_line(before)):
        return line.count("|") == row.count("|")
    if set(line) <= {"-"} or set(line) == {"*"}:
        return len(line) > 2
    return not line.startswith("*") or line.startswith("* ") or not line.count("*") % 2


def _is_talk_about_answer(rest: str, so_far: str) -> bool:
    if _in_fence(so_far):
        return False
    said = profile_vocabulary(_MARKER.sub("", rest.lstrip().partition("\n\n")[0]), so_far)
    about = said.fresh_talk + said.person
    return about > 1 and said.subject + said.shared < about


def _find_starts(so_far: str, reply: str) -> Iterator[tuple[int, int]]:
    """Yield each position in a reply where the continuation may start, and how much must match there.

    The second number is how many letters must repeat the end of the text.
    """
    at, least = 0, 0
    lines = reply.split("\n", 3 * _PRELUDE)
    for number, line in enumerate(lines[: 2 * _PRELUDE]):
        if line.strip():
            yield at, least
            sure = _is_frame(so_far, line, lines[number + 1] if number + 1 < len(lines) else "")
            alone = lines[number + 1 : number + 2] == [""] and line[0].isupper() and _is_talk(line)
            if not (sure or alone):
                return
            least = least if sure else _SURELY
        at += len(line) + 1


def _is_frame(so_far: str, line: str, following: str) -> bool:
    """Return True if a line only introduces the continuation, for example "The rest:" or an opening fence."""
    if line.startswith("|"):
        table = so_far.rstrip().rpartition("\n\n")[2].split("\n")
        return line in table[:2] and table.index(line) + 1 < len(table)
    if fence := _FENCE.match(line):
        return fence[2] in ("markdown", "md") or (_in_fence(so_far) and bool(fence[2]))
    return line.rstrip().endswith(":") and bool(_GOES_ON.search(line)) and not following.strip()


def _is_talk(line: str) -> bool:
    announces = line.rstrip().endswith(":") or bool(_GOES_ON.search(line))
    return len(line) <= (_PRELUDE_LINE if announces else _SHORT_LINE)


def _repeated_length(so_far: str, piece: str, least: int) -> int | None:
    """Return how many characters at the start of a reply repeat the end of the text, or None if too few match."""
    base = so_far.rstrip()
    found = re.search(r"\w{1,80}\Z", base)
    word = found[0] if found else ""
    # Some models put ``> `` or dots before the line that they continue.
    for quoted in dict.fromkeys((piece, re.sub(r"\A\s*(?:>[ \t]?|…[ \t]?|\.\.\.[ \t]?)", "", piece))):
        lead = len(quoted) - len(quoted.lstrip())
        begin = len(piece) - len(quoted) + lead
        for start in _find_anchors(base, words=not least):
            if quoted.startswith(base[start:], lead) and _count_letters(base[start:]) >= least:
                return begin + len(base) - start
        if not least and len(word) >= 3 and quoted.startswith(word, lead) and quoted[lead + len(word) :][:1].isalnum():
            return begin + len(word)
    return None


def _find_anchors(base: str, *, words: bool) -> Iterator[int]:
    """Yield positions near the end of a text where a repetition may begin, starting with the longest repetition."""
    starts, end = [len(base) - len(quote_last_lines(base))], len(base)
    for _ in range(_LINES + 1):
        start = base.rfind("\n", 0, end) + 1
        line = base[start:end]
        if line.strip():
            starts.append(start + len(line) - len(line.lstrip()))
        if not start:
            break
        end = start - 1
    yield from sorted(starts)
    if not words:
        return
    for word in _WORD.finditer(base, max(starts[1] if len(starts) > 1 else 0, len(base) - _LAST_LINE)):
        if _count_letters(base[word.start() :]) >= 8:
            yield word.start()


def _append_rest(so_far: str, rest: str) -> ContinuedText:
    base = so_far.rstrip()
    space = so_far[len(base) :]
    lead = rest[: len(rest) - len(rest.lstrip())]
    if lead.startswith(space):
        return ContinuedText(so_far + rest[len(space) :], len(so_far))
    if "\n" in space:
        return ContinuedText(so_far + rest[lead.rfind("\n") + 1 :], len(so_far))
    return ContinuedText(base + rest, len(base))


def _find_restart(so_far: str, piece: str) -> int | None:
    """Return how much of the truncated text to keep if the reply starts over, or None if the reply continues."""
    line = piece.partition("\n")[0].strip()
    if line == "---" and _ADR_ID.search(piece[:400]) and _ADR_ID.search(so_far):
        return 0
    first = [one for one in so_far.split("\n", 12)[:12] if _count_letters(one) >= 8][:3]
    if _count_letters(line) >= 8 and any(_plain_words(line) == _plain_words(one) for one in first):
        return 0
    if heading := _HEADING.match(line):
        places = {_plain_words(title): at for at, title in _find_headings(so_far)}
        if (at := places.get(_plain_words(heading[2]))) is not None:
            return at
    if not piece[:1].isupper() and piece[:1] != so_far.lstrip()[:1]:
        return None
    ours, theirs = (_WORD.findall(text[:1000].casefold())[:_WORDS] for text in (so_far, piece))
    same = [our == their for our, their in zip(ours[:_FIRST], theirs[:_FIRST], strict=False)]
    if sum(same) < _FIRST - 1 or not same[0]:
        return None
    return 0 if difflib.SequenceMatcher(None, ours, theirs, autojunk=False).ratio() >= _ALIKE else None


def _unwrap_fence(so_far: str, reply: str, start: int, rest: str) -> str:
    opening = _FENCE.match(reply[:start].rstrip("\n").rpartition("\n")[2]) if start else None
    if not opening:
        return rest
    lines = rest.split("\n")
    ends = [n for n, line in enumerate(lines) if line.rstrip() == opening[1]]
    if not ends:
        return rest
    without = "\n".join(lines[: ends[-1]] + lines[ends[-1] + 1 :])
    # If the text broke off inside code, the fence's end belongs to that code.
    return rest if not _in_fence(so_far + rest) and _in_fence(so_far) else without


def _append_unrepeated(so_far: str, rest: str, complete: bool) -> ContinuedText | None:
    if not rest.strip() or (complete and _in_fence(so_far) and _in_fence(so_far + rest)):
        return None  # a reply to an answer that broke off in a block of code must end the block
    if so_far.endswith(" ") and rest.startswith(" "):
        so_far = so_far.rstrip(" ")
    elif so_far.endswith("\n") and rest.startswith("\n") and _ROW.match(rest[1:]) and _ROW.match(_last_line(so_far)):
        rest = rest[1:]  # a blank line would end the table, or loosen the list
    if _is_talk_about_answer(rest, so_far):
        return None
    so_far, rest = _join_table_row(so_far, rest)
    tail, head = so_far[-1:], rest[:1]
    if not _MARKER.sub("", rest).strip() and (_in_fence(so_far) or not so_far.rstrip().endswith(_SENTENCE_END)):
        return None
    if tail.isspace() or head.isspace() or _in_fence(so_far):
        return ContinuedText(so_far + rest, len(so_far))
    half = trim_partial_marks(so_far) != so_far or so_far.rfind("<!--") > so_far.rfind("-->")
    if not half and (_HEADING.match(rest) or rest.startswith("<!--")):
        return ContinuedText(f"{so_far}\n\n{rest}", len(so_far))
    # A continued word is in lower case; a capital usually starts over.
    beginning = head.isupper() and tail not in _OPENING and not half
    return None if beginning else ContinuedText(so_far + rest, len(so_far))


def _join_table_row(so_far: str, rest: str) -> tuple[str, str]:
    row = so_far.rpartition("\n")[2]
    if not row.startswith("|") or not row.rstrip().endswith("|") or not rest.lstrip(" ").startswith("|"):
        return so_far, rest
    head = next(line for line in reversed([row, *itertools.takewhile(_is_row, reversed(so_far.split("\n")))]))
    if head != row and row.count("|") >= head.count("|"):
        return so_far, "\n" + rest.lstrip(" ")
    return so_far, rest.lstrip(" ")[1:]


def _is_row(line: str) -> bool:
    return line.startswith("|")


def _in_fence(text: str) -> bool:
    fences = parse_document(text).out.fences if may_hold_fences(text) else []
    return bool(fences) and not fences[-1].closed and fences[-1].end == text.count("\n") + 1


def _find_headings(text: str) -> Iterator[tuple[int, str]]:
    document = parse_document(text)
    for heading in document.out.headings:
        if heading.top and heading.level <= 2:
            yield document.position_of(heading.line), heading.title


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    places = [(0, ""), *_find_headings(text)]
    for (at, title), end in zip(places, [*[at for at, _ in places[1:]], len(text)], strict=True):
        yield _plain_words(title), text[at:end].strip()


def _plain_words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _count_letters(text: str) -> int:
    return sum(char.isalnum() for char in text)

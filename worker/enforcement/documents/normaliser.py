"""Named edits before validation: remove what models add around an answer without meaning it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from api_client.contract.reasoning import may_hold_reasoning, remove_reasoning
from api_client.contract.word_tables import load_word_table
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.outline import BOM, lines_in_spans, may_hold_fences, parse_outline
from worker.enforcement.documents.step import strip_marker

_WORDS = load_word_table(__file__)
REASONING, UNCLOSED, FENCE = "reasoning", "unclosed_reasoning", "fence"
_LINE_END = re.compile(r"(?<!\r)\r+\n")
_FENCE = re.compile(r"\A\s*(`{3,}|~{3,})[ \t]*([\w+-]{0,20})[ \t]*\n")
_DOCUMENT_HEADING = re.compile(r"#{1,2}[ \t]+\S")
#: Info strings of fences that hold Markdown, and of languages that have comments with ``#``.
_MARKDOWN = frozenset(_WORDS["fences"]["markdown"])
_HASH_COMMENTS = frozenset(_WORDS["fences"]["hash_comments"])
_YAML = frozenset(("yaml", "yml"))
_HEADER_INFOS = frozenset(("", "yaml", "yml", "markdown", "md", "frontmatter"))
#: A line of prose, which YAML never has at the start of a line.
_KEY_LINE = re.compile(r"[\w.\-/\"' ]{1,80}:(?:\s|$)")
_HARD_BLANKS = "\xa0\u2007\u202f"
_HEADING = re.compile(rf"[ {_HARD_BLANKS}]{{0,3}}#{{1,6}}[ \t{_HARD_BLANKS}]")
_BLANKS = str.maketrans(dict.fromkeys(_HARD_BLANKS, " "))
#: A header value that must be quoted to be the intended YAML.
_BARE_VALUE = re.compile(r"(?P<key>[ ]*(?:-[ ]+)?(?:[A-Za-z_][\w.-]{0,60}:[ \t]+)?)(?P<value>\S[^\n]*?)[ \t]*")
_BLOCK_SCALAR = re.compile(r":[ \t]+[|>][+-]?\d?[ \t]*$", re.MULTILINE)
_PAIRS = {"[": "]", "{": "}"}
_HEADER_RULE = "---"
_RULE_LINE = re.compile(rf"^{_HEADER_RULE}", re.MULTILINE)
_MAX_HEADER = 400
#: Most rounds of edits: an edit may make room for another one.
_MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class TextEdit:
    """An automatic edit of an answer, with the number of replaced pieces and affected lines."""

    name: str
    count: int
    lines: int


@dataclass(frozen=True, slots=True)
class NormalisedText:
    """A text after normalisation, with the edits that were made."""

    text: str
    edits: tuple[TextEdit, ...] = ()


def describe_edit(edit: TextEdit, locale: str) -> str:
    """Return the name and a readable description of an edit, in the language of the locale."""
    german = locale.lower().startswith("de")
    lines = ("Zeile" if edit.lines == 1 else "Zeilen") if german else ("line" if edit.lines == 1 else "lines")
    return f"{edit.name}: {_WORDS[edit.name]['de' if german else 'en']} ({edit.count}×, {edit.lines} {lines})"


def normalise_answer(text: str) -> NormalisedText:
    """Apply edits until none applies any more, and return the new text with the edits."""
    done: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    now = text
    for _ in range(_MOST_ROUNDS):
        before = now
        for name, (may_apply, edit) in _EDITS.items():
            if not may_apply(now):
                continue
            after, count = edit(now)
            if after != now:
                done[name] += count
                lines[name] += _count_changed_lines(now, after)
                now = after
        if now == before:
            return NormalisedText(now, tuple(TextEdit(name, done[name], lines[name]) for name in done))
    return NormalisedText(text)


def _count_changed_lines(before: str, after: str) -> int:
    old, new = before.split("\n"), after.split("\n")
    most = min(len(old), len(new))
    start = next((n for n in range(most) if old[n] != new[n]), most)
    end = next((n for n in range(most - start) if old[-1 - n] != new[-1 - n]), most - start)
    return max(len(old), len(new)) - start - end


def _remove_bom(text: str) -> tuple[str, int]:
    return text.lstrip(f"{BOM}\u200b\u2060"), 1


def _plain_line_ends(text: str) -> tuple[str, int]:
    return _LINE_END.subn("\n", text)


def _remove_closed_reasoning(text: str) -> tuple[str, int]:
    found = [piece for piece in remove_reasoning(text).removed if piece.closed]
    ends = [*(piece.start for piece in found), len(text)]
    return "".join(text[start:end] for start, end in zip([0, *(piece.end for piece in found)], ends, strict=True)), len(
        found
    )


def _remove_unclosed_reasoning(text: str) -> tuple[str, int]:
    found = remove_reasoning(text)
    return found.text, len(found.removed)


def _remove_fence(text: str) -> tuple[str, int]:
    body = strip_marker(text)
    opening = _FENCE.match(body)
    if not opening:
        return text, 0
    inside = body[opening.end() :].rstrip()
    last = inside.rpartition("\n")[2].strip()
    if not last.startswith(opening[1]) or last.strip(last[0]) or not _is_document(inside, opening[2].lower()):
        return text, 0
    inside = inside[: -len(last)].rstrip()
    # If another fence is open at the end, the last line closes that one.
    fences = parse_outline(inside).fences
    return (text, 0) if fences and not fences[-1].closed else (inside + text[len(body) :], 1)


def _is_document(inside: str, language: str) -> bool:
    """Return True if a fence contains a document, rather than code whose comments look like headings."""
    lines = inside.split("\n")
    first = _next_filled_line(lines, 0)
    end = _find_header_end(lines, first)
    rest = _next_filled_line(lines, end or first)
    heading = rest < len(lines) and bool(_DOCUMENT_HEADING.match(lines[rest]))
    if language in _MARKDOWN:
        return lines[first : first + 1] == [_HEADER_RULE] or any(map(_DOCUMENT_HEADING.match, lines))
    titled = heading and _next_filled_line(lines, rest + 1) > rest + 1
    if end or language in _YAML:
        prose = (line for line in lines[rest:] if line[:1].isalpha() and " " in line and not _KEY_LINE.match(line))
        return titled and any(prose)
    return titled and language not in _HASH_COMMENTS


def _unfence_header(text: str) -> tuple[str, int]:
    opening = _FENCE.match(text)
    if not opening or opening[2].lower() not in _HEADER_INFOS:
        return text, 0
    end = re.compile(rf"^{re.escape(opening[1])}[ \t]*(?:\n|\Z)", re.MULTILINE).search(text, opening.end())
    if end is None or not re.match(r"\s*#{1,2}[ \t]+\S", text[end.end() :]):
        return text, 0
    lines = text[opening.end() : end.start()].strip().splitlines()
    lines = lines[1:] if lines and lines[0].rstrip() == _HEADER_RULE else lines
    lines = lines[:-1] if lines and lines[-1].rstrip() == _HEADER_RULE else lines
    yaml_text = "\n".join(lines)
    if "adr_id" not in header_lines.find_entries(yaml_text) or _HEADER_RULE in lines:
        return text, 0
    return f"---\n{yaml_text}\n---\n\n{text[end.end() :].lstrip()}", 1


def _find_header_end(lines: list[str], start: int) -> int:
    if start >= len(lines) or lines[start].rstrip() != _HEADER_RULE:
        return 0
    end = next(
        (n for n in range(start + 1, min(len(lines), start + _MAX_HEADER)) if lines[n].rstrip() == _HEADER_RULE), 0
    )
    return end + 1 if end and header_lines.find_entries("\n".join(lines[start + 1 : end])) else 0


def _next_filled_line(lines: list[str], start: int) -> int:
    return next((n for n in range(start, len(lines)) if lines[n].strip()), len(lines))


def _merge_headers(text: str) -> tuple[str, int]:
    """Return the text with two headers above the title merged, or with a title moved below the header."""
    lines = text.split("\n")
    first = _next_filled_line(lines, 0)
    title = lines[first] if first < len(lines) and lines[first].startswith("# ") else ""
    start = _next_filled_line(lines, first + 1) if title else first
    end = _find_header_end(lines, start)
    if not end:
        return text, 0
    second = _next_filled_line(lines, end)
    last = _find_header_end(lines, second)
    head, rest = lines[start + 1 : end - 1], end
    if last:
        headers = ["\n".join(head), "\n".join(lines[second + 1 : last - 1])]
        other, best = sorted(headers, key=_count_fields)
        alike = [line.rstrip() for line in head] == [line.rstrip() for line in lines[second + 1 : last - 1]]
        kept = header_lines.keep_missing_keys(best, other)
        if not alike and ("adr_id" not in header_lines.find_entries(best) or kept is None):
            return text, 0
        head, rest = (best if alike or kept is None else kept).split("\n"), last
    below = _next_filled_line(lines, rest)
    if title and (below == len(lines) or lines[below].rstrip() != title.rstrip()):
        lines[rest:rest] = ["", title]
    if not (title or last):
        return text, 0
    return "\n".join([*lines[:first], _HEADER_RULE, *head, _HEADER_RULE, *lines[rest:]]), 1


def _count_fields(yaml_text: str) -> int:
    return len(set(header_lines.find_entries(yaml_text)) & {*header_lines.FIELDS}) + (
        header_lines.parse_mapping(yaml_text) is not None
    )


def _remove_last_header(text: str) -> tuple[str, int]:
    body = strip_marker(text).rstrip()
    lines = body.split("\n")
    first = _next_filled_line(lines, 0)
    end = _find_header_end(lines, first)
    own = {line.rstrip() for line in lines[first:end]}
    title = lines[below].rstrip() if (below := _next_filled_line(lines, end)) < len(lines) else ""
    stop = len(lines) - 1 if end and title.startswith("# ") and lines[-1].rstrip() == title else len(lines)
    stop = max((n + 1 for n in range(stop) if lines[n].strip()), default=0)
    start = next((n for n in range(stop - 2, end, -1) if lines[n].rstrip() == _HEADER_RULE), 0)
    if not end or not start or _find_header_end(lines, start) != stop:
        return text, 0
    fenced = parse_outline(body).fenced if may_hold_fences(body) else []
    if not {line.rstrip() for line in lines[start:stop]} <= own or start in lines_in_spans(fenced):
        return text, 0
    return "\n".join(lines[:start]).rstrip() + text[len(body) :], 1


def _remove_second_title(text: str) -> tuple[str, int]:
    lines = text.split("\n", _MAX_HEADER)
    first = _next_filled_line(lines, 0)
    title = _next_filled_line(lines, _find_header_end(lines, first) or first)
    again = _next_filled_line(lines, title + 1)
    twice = again < len(lines) and lines[title].startswith("# ") and lines[again].rstrip() == lines[title].rstrip()
    return ("\n".join([*lines[:title], *lines[again:]]), 1) if twice else (text, 0)


def _quote_values(text: str) -> tuple[str, int]:
    lines = text.split("\n")
    start = _next_filled_line(lines, 0)
    end = _find_header_end(lines, start)
    head = lines[start + 1 : end - 1]
    yaml_text = "\n".join(head)
    if not end or header_lines.parse_mapping(yaml_text) is not None:
        return text, 0
    flat = _BLOCK_SCALAR.search(yaml_text) is None
    quoted = [_quote_value(line) if flat or not line.startswith(" ") else line for line in head]
    if header_lines.parse_mapping("\n".join(quoted)) is None:
        return text, 0
    count = sum(line != before for line, before in zip(quoted, head, strict=True))
    return "\n".join([*lines[: start + 1], *quoted, *lines[end - 1 :]]), count


def _quote_value(line: str) -> str:
    found = _BARE_VALUE.fullmatch(line)
    if not found or not found["key"].strip() or _is_yaml(line.strip()):
        return line
    value = found["value"]
    if (
        value.count(value[0]) % 2
        if value[0] in "\"'"
        else value.count(value[0]) != value.count(_PAIRS.get(value[0], value[0]))
    ):
        return line  # its other end is missing, not its quotes
    return f'{found["key"]}"{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'


def _is_yaml(line: str) -> bool:
    return header_lines.parse_mapping(line) is not None or header_lines.parse_mapping(f"key:\n  {line}") is not None


def _fix_heading_blanks(text: str) -> tuple[str, int]:
    lines = text.split("\n")
    hard = {
        number: line for number, line in enumerate(lines) if _HEADING.match(line) and line != line.translate(_BLANKS)
    }
    code = lines_in_spans(parse_outline(text).fenced) if hard else set()
    for number in hard.keys() - code:
        lines[number] = lines[number].translate(_BLANKS)
    return "\n".join(lines), len(hard.keys() - code)


#: Edits by name, in the order in which they are tried, each with a quick check that every text passes that it changes.
_EDITS: dict[str, tuple[Callable[[str], object], Callable[[str], tuple[str, int]]]] = {
    "byte_order_mark": (re.compile(rf"[{BOM}\u200b\u2060]").match, _remove_bom),
    "line_ends": (_LINE_END.search, _plain_line_ends),
    REASONING: (may_hold_reasoning, _remove_closed_reasoning),
    UNCLOSED: (may_hold_reasoning, _remove_unclosed_reasoning),
    "heading_blanks": (re.compile(f"[{_HARD_BLANKS}]").search, _fix_heading_blanks),
    FENCE: (_FENCE.match, _remove_fence),
    "header_fence": (_FENCE.match, _unfence_header),
    "header_twice": (_RULE_LINE.search, _merge_headers),
    "header_at_end": (_RULE_LINE.search, _remove_last_header),
    "title_twice": (re.compile(r"^# ", re.MULTILINE).search, _remove_second_title),
    "yaml_quotes": (_RULE_LINE.search, _quote_values),
}

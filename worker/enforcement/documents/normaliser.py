"""Named edits before validation: remove what models add around an answer without meaning it.

The attempt records each edit (docs/enforcement.md, "Before an answer is judged").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from api_client.contract.word_tables import load_word_table
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.outline import lines_in_spans, parse_outline
from worker.enforcement.documents.step import strip_marker

_WORDS = load_word_table(__file__)
_TAGS = "think|thinking|reasoning|thought|reflection"
_OPENING = re.compile(rf"\s*<({_TAGS})>", re.IGNORECASE)
_CLOSING = re.compile(rf"(?<!`)</({_TAGS})>(?!`)[ \t]*\n*", re.IGNORECASE)
_OPENS = re.compile(rf"(?<!`)<(?:{_TAGS})>", re.IGNORECASE)
_FENCE = re.compile(r"\A\s*(`{3,}|~{3,})[ \t]*([\w+-]{0,20})[ \t]*\r?\n")
_DOCUMENT = re.compile(r"\A(?:---[ \t]*\r?\n|#{1,2}[ \t]+\S)")
#: Info strings of fences that may wrap the document itself.
_DOCUMENT_INFOS = frozenset(("", "markdown", "md", "text", "txt", "yaml", "yml", "plaintext"))
_HEADER_INFOS = frozenset(("", "yaml", "yml", "markdown", "md", "frontmatter"))
_HEADING_BLANK = re.compile(r"^(#{1,6})[\xa0\u2007\u202f]+(?=\S)", re.MULTILINE)
#: A header value that must be quoted to be the intended YAML.
_BARE_VALUE = re.compile(
    r"^(?P<key>[A-Za-z_][\w.-]{0,60}:[ \t]+)(?P<value>[^\s\"'|>#&*!\-][^\n]*?|[*&!%@`-][^\n]*?)[ \t]*$"
)
_HEADER_RULE = "---"
_MAX_HEADER = 400


@dataclass(frozen=True, slots=True)
class NormalisedText:
    """A text after normalisation, with the names of the edits that were applied to it."""

    text: str
    edits: tuple[str, ...] = ()


def describe_edit(name: str, locale: str) -> str:
    """Return a description of an edit for a person, in the language of the locale."""
    return str(_WORDS[name]["de" if locale.lower().startswith("de") else "en"])


def normalise_answer(text: str) -> NormalisedText:
    """Apply every edit that fits the text, and return the new text with the names of the applied edits."""
    done: list[str] = []
    for name, edit in _EDITS.items():
        after = edit(text)
        if after != text:
            done.append(name)
            text = after
    return NormalisedText(text, tuple(done))


def remove_reasoning(text: str) -> str:
    """Return the text without the model's reasoning at its start, even if one of the reasoning tags is missing."""
    while opening := _OPENING.match(text):
        closing = re.compile(rf"</{opening[1]}>\s*", re.IGNORECASE).search(text, opening.end())
        text = text[closing.end() :] if closing else ""
    closing = _CLOSING.search(text)
    if closing and not _OPENS.search(text, 0, closing.start()) and text.count("```", 0, closing.start()) % 2 == 0:
        return text[closing.end() :]
    return text


def _remove_fence(text: str) -> str:
    """Return the text without the code fence that encloses a whole document."""
    body = strip_marker(text)
    opening = _FENCE.match(body)
    if not opening or opening[2].lower() not in _DOCUMENT_INFOS:
        return text
    inside = body[opening.end() :].rstrip()
    last = inside.rpartition("\n")[2].strip()
    if last != opening[1] or not _DOCUMENT.match(inside):
        return text
    inside = inside[: -len(last)].rstrip()
    # If another fence is open at the end, the last line closes that one.
    return (
        text
        if parse_outline(inside).fences and not parse_outline(inside).fences[-1].closed
        else inside + text[len(body) :]
    )


def _unfence_header(text: str) -> str:
    opening = _FENCE.match(text)
    if not opening or opening[2].lower() not in _HEADER_INFOS:
        return text
    end = re.compile(rf"^{re.escape(opening[1])}[ \t]*(?:\r?\n|\Z)", re.MULTILINE).search(text, opening.end())
    if end is None or not re.match(r"\s*#{1,2}[ \t]+\S", text[end.end() :]):
        return text
    lines = text[opening.end() : end.start()].strip().splitlines()
    lines = lines[1:] if lines and lines[0].rstrip() == _HEADER_RULE else lines
    lines = lines[:-1] if lines and lines[-1].rstrip() == _HEADER_RULE else lines
    yaml_text = "\n".join(lines)
    if "adr_id" not in header_lines.find_entries(yaml_text) or _HEADER_RULE in lines:
        return text
    return f"---\n{yaml_text}\n---\n\n{text[end.end() :].lstrip()}"


def _find_header_end(lines: list[str], start: int) -> int:
    if start >= len(lines) or lines[start].rstrip() != _HEADER_RULE:
        return 0
    end = next(
        (n for n in range(start + 1, min(len(lines), start + _MAX_HEADER)) if lines[n].rstrip() == _HEADER_RULE), 0
    )
    return end + 1 if end and header_lines.find_entries("\n".join(lines[start + 1 : end])) else 0


def _next_filled_line(lines: list[str], start: int) -> int:
    return next((n for n in range(start, len(lines)) if lines[n].strip()), len(lines))


def _merge_headers(text: str) -> str:
    """Return the text with two headers above the title merged, or with a title moved below the header.

    The header with more ADR fields, or the later one, wins and takes missing keys from the other.
    """
    lines = text.split("\n")
    first = _next_filled_line(lines, 0)
    title = lines[first] if first < len(lines) and lines[first].startswith("# ") else ""
    start = _next_filled_line(lines, first + 1) if title else first
    end = _find_header_end(lines, start)
    if not end:
        return text
    second = _next_filled_line(lines, end)
    last = _find_header_end(lines, second)
    head, rest = lines[start + 1 : end - 1], end
    if last:
        headers = ["\n".join(head), "\n".join(lines[second + 1 : last - 1])]
        other, best = sorted(headers, key=_count_fields)
        if (
            "adr_id" not in header_lines.find_entries(best)
            or (kept := header_lines.keep_missing_keys(best, other)) is None
        ):
            return text
        head, rest = kept.split("\n"), last
    below = _next_filled_line(lines, rest)
    if title and (below == len(lines) or lines[below].rstrip() != title.rstrip()):
        lines[rest:rest] = ["", title]
    if not (title or last):
        return text
    return "\n".join([*lines[:first], _HEADER_RULE, *head, _HEADER_RULE, *lines[rest:]])


def _count_fields(yaml_text: str) -> int:
    return len(set(header_lines.find_entries(yaml_text)) & {*header_lines.FIELDS}) + (
        header_lines.parse_mapping(yaml_text) is not None
    )


def _remove_second_title(text: str) -> str:
    lines = text.split("\n", _MAX_HEADER)
    first = _next_filled_line(lines, 0)
    title = _next_filled_line(lines, _find_header_end(lines, first) or first)
    again = _next_filled_line(lines, title + 1)
    twice = again < len(lines) and lines[title].startswith("# ") and lines[again].rstrip() == lines[title].rstrip()
    return "\n".join([*lines[:title], *lines[again:]]) if twice else text


def _quote_values(text: str) -> str:
    """Return the text with quoted header values, if only missing quotes made the header invalid YAML."""
    lines = text.split("\n")
    start = _next_filled_line(lines, 0)
    end = _find_header_end(lines, start)
    yaml_text = "\n".join(lines[start + 1 : end - 1])
    if not end or header_lines.parse_mapping(yaml_text) is not None:
        return text
    quoted = "\n".join(map(_quote_value, lines[start + 1 : end - 1]))
    if quoted == yaml_text or header_lines.parse_mapping(quoted) is None:
        return text
    return "\n".join([*lines[: start + 1], quoted, *lines[end - 1 :]])


def _quote_value(line: str) -> str:
    found = _BARE_VALUE.match(line)
    if not found or header_lines.parse_mapping(line) is not None:
        return line
    value = found["value"].rstrip("\r")
    return f'{found["key"]}"{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'


def _fix_heading_blanks(text: str) -> str:
    if not _HEADING_BLANK.search(text):
        return text
    code = lines_in_spans(parse_outline(text).fenced)
    lines = text.split("\n")
    return "\n".join(line if number in code else _HEADING_BLANK.sub(r"\1 ", line) for number, line in enumerate(lines))


#: Edits by name, in the order in which they are tried.
_EDITS: dict[str, Callable[[str], str]] = {
    "reasoning": remove_reasoning,
    "heading_blanks": _fix_heading_blanks,
    "fence": _remove_fence,
    "header_fence": _unfence_header,
    "header_twice": _merge_headers,
    "title_twice": _remove_second_title,
    "yaml_quotes": _quote_values,
}

"""The YAML header, or single keys of it, in a reply: between ``---`` lines, in a fence, or in bare lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from worker.enforcement.documents import header_lines
from worker.enforcement.documents.part import FILES, YAML_HEADER, header_key
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.markdown.scan import outline

#: More lines are not a header.
_MAX_LINES = 2_000
_FIELD = re.compile(r"(?:[-*+]\s{1,4})?[`*]{0,2}(adr_id|title|status)[`*]{0,2}:[`*]{0,2}\s{1,10}(\S.{0,300}?)[`]{0,2}$")


def yaml_texts(text: str) -> list[str]:
    """What may be a header or a piece of one, outside code: bare lines, then texts between ``---`` lines."""
    lines = text.split("\n")
    coded = {number for fence in outline(text).fences for number in range(fence.start, fence.end)}
    between: list[str] = []
    bare: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        start, number = number, number + 1
        if start in coded:
            continue
        if line.rstrip() == "---":
            end = next((n for n in range(number, min(len(lines), start + _MAX_LINES)) if _is_rule(lines[n])), 0)
            if end and header_lines.blocks("\n".join(lines[number:end])):
                between.append("\n".join(lines[number:end]))
                number = end + 1
        elif header_lines.blocks(line) or _FIELD.match(line.strip()):
            while number < len(lines) and lines[number].strip() and not lines[number].startswith(("---", "#", "`")):
                number += 1
            bare.append("\n".join(lines[start:number]))
    return [*bare, *between]


def read_yaml(yaml_text: str, asked: Collection[str]) -> tuple[str, dict[str, str]]:
    """A whole header, and lines of single keys, that a piece of YAML offers; its ``---`` lines may be missing.

    Args:
        yaml_text: the piece.
        asked: names of parts; what is not asked for is not offered.
    """
    lines = yaml_text.strip("\n").split("\n")
    lines = lines[1:] if _is_rule(lines[0]) else lines
    ends = (n for n, line in enumerate(lines) if line.rstrip() in ("---", "...") or line.startswith("# ADR-"))
    lines = lines[: next(ends, len(lines))]
    text = strip_marker("\n".join(lines).rstrip())
    text = text if header_lines.blocks(text) else _listed(lines)
    whole = YAML_HEADER in asked and len(set(header_lines.blocks(text)) & {*header_lines.FIELDS}) > 1
    offered = {name: _key(text, name) for part in asked if (name := header_key(part))}
    return text if whole else "", {name: value for name, value in offered.items() if value}


def better(new: str, old: str) -> str:
    """The header that says more: one that is YAML, with more of the fields; among equals the later one."""
    if not new or not old:
        return new or old
    return max((old, new), key=_worth) if _worth(new) != _worth(old) else new or old


def _key(text: str, name: str) -> str:
    """The lines of one key, also where ``files`` itself is left out, or the line is a list's item or in code."""
    if found := header_lines.key_lines(text, name):
        return found
    keys = set(header_lines.blocks(text))
    if name == FILES and keys and keys <= header_lines.LISTS and header_lines.mapping(text):
        return "files:\n" + "\n".join(f"  {line}" for line in text.split("\n"))
    matches = (_FIELD.match(line.strip()) for line in text.split("\n"))
    field = next((one for one in matches if one and one[1] == name), None)
    return header_lines.key_lines(f"{name}: {field[2]}", name) if field else ""


def _listed(lines: Sequence[str]) -> str:
    """Fields that are in a list or in bold letters, as YAML; empty where they are not YAML."""
    found = [one for line in lines if (one := _FIELD.match(line.strip()))]
    text = "\n".join(f"{one[1]}: {one[2]}" for one in found)
    return text if header_lines.mapping(text) else ""


def _is_rule(line: str) -> bool:
    return line.rstrip() == "---"


def _worth(header: str) -> tuple[bool, int]:
    return header_lines.mapping(header) is not None, len(set(header_lines.blocks(header)) & {*header_lines.FIELDS})

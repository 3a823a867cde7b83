"""Moves entries between two lists of ``files`` in a YAML header, by spans: no other byte changes.

Source: ADR-038 section 4, fallback. Comments, quotes, order and line endings stay; an entry keeps its quotes and, in a
block list, the comment behind it. Every edit is read again; when it does not say what was meant, nothing is edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.enforcement.documents.frontmatter import HeaderError, Node, read_header

Edit = tuple[int, int, str]

_DASH = re.compile(r"([ ]*)-[ ]+")
_FLOW_UNSAFE = re.compile(r"[,\[\]{}#]|: ")


def move_entries(header: str, paths: set[str], *, source: str, target: str) -> str | None:
    """The header with these entries of ``files.<source>`` moved to ``files.<target>``.

    Args:
        header: the YAML between the ``---`` lines.
        paths: the entries to move, as their values; those that the target has already are only removed.
        source: the key of the list they are in.
        target: the key of the list they go to; made when it is missing or empty.

    Returns:
        The new text; None when the header is written in a way that cannot be edited surely.
    """
    try:
        lists = _Lists.read(header, source, target)
        if lists is None:
            return None
        leaving = [item for item in lists.source.items if item.value in paths]
        kept = [item.value for item in lists.source.items if item.value not in paths]
        there = [item.value for item in lists.target.items] if lists.target else []
        known = set(there)
        first_of = {item.value: item for item in reversed(leaving) if item.value not in known}
        arriving = [item for item in leaving if first_of.get(item.value) is item]
        edits = [*_removals(header, lists, leaving), *(_arrivals(header, lists, arriving, target) if arriving else [])]
        edited = _apply(header, edits)
        after = _Lists.read(edited, source, target)
    except (_Unsure, HeaderError):
        return None
    wanted = (kept, there + [item.value for item in arriving])
    got = after and (
        [i.value for i in after.source.items],
        [i.value for i in after.target.items] if after.target else [],
    )
    return edited if got == wanted and after is not None and after.others == lists.others else None


class _Unsure(Exception):
    """The header is written in a way this module does not edit."""


@dataclass(slots=True)
class _Lists:
    """The two lists with their keys, and the other keys there are."""

    files: Node
    source_key: Node
    source: Node
    target_key: Node | None
    target: Node | None
    others: tuple[list[str], list[str]]

    @classmethod
    def read(cls, header: str, source: str, target: str) -> _Lists | None:
        root = read_header(header)
        files = root.get("files") if root is not None else None
        if root is None or files is None:
            return None
        pairs = {key.value: (key, value) for key, value in files.pairs}
        if source not in pairs or len(pairs) != len(files.pairs):
            return None
        target_key, target_node = pairs.get(target, (None, None))
        others = ([key.value for key, _ in root.pairs], [name for name in pairs if name != target])
        return cls(files, *pairs[source], target_key, target_node, others)


def _removals(text: str, lists: _Lists, leaving: Sequence[Node]) -> list[Edit]:
    """The edits that take entries out of the source list."""
    items = lists.source.items
    if lists.source.flow:
        if len(leaving) == len(items):
            return [(items[0].start, items[-1].end, "")]
        return list(_flow_removals(items, leaving))
    edits = [(*_lines_of(text, item), "") for item in leaving]
    if len(leaving) == len(items):
        colon = text.index(":", lists.source_key.end) + 1
        edits.append((colon, colon, " []"))
    return edits


def _flow_removals(items: Sequence[Node], leaving: Sequence[Node]) -> Iterator[Edit]:
    """Take entries out of ``[a, b]``, each with one of the commas around it."""
    gone = {id(item) for item in leaving}
    stays_before = False
    for at, item in enumerate(items):
        if id(item) not in gone:
            stays_before = True
        elif stays_before:
            yield items[at - 1].end, item.end, ""
        else:
            yield item.start, items[at + 1].start, ""


def _arrivals(text: str, lists: _Lists, arriving: Sequence[Node], target: str) -> list[Edit]:
    """The edits that put entries into the target list."""
    eol = "\r\n" if "\r\n" in text else "\n"
    node, key = lists.target, lists.target_key
    if node is not None and node.kind == "sequence":
        if node.flow:
            at = node.items[-1].end if node.items else node.start + 1
            return [(at, at, (", " if node.items else "") + _flow(text, arriving))]
        indent = _dash(text, node.items[-1])
        end = _lines_of(text, node.items[-1])[1]
        return [(end, end, _block(text, arriving, indent, eol))]
    if node is not None and not node.null:
        raise _Unsure
    place = key or lists.source_key
    if lists.files.flow:
        if node is not None:
            return [(node.start, node.end, f" [{_flow(text, arriving)}]")]
        return [(place.start, place.start, f"{target}: [{_flow(text, arriving)}], ")]
    margin = text[text.rfind("\n", 0, place.start) + 1 : place.start]
    if margin.strip():
        raise _Unsure
    if node is not None:
        edits: list[Edit] = [(node.start, node.end, "")] if node.end > node.start else []
        line_end = _line_end(text, place.end)
        return [*edits, (line_end, line_end, _block(text, arriving, margin + _step(text, lists), eol))]
    at = place.start - len(margin)
    return [(at, at, f"{margin}{target}:{eol}" + _block(text, arriving, margin + _step(text, lists), eol))]


def _step(text: str, lists: _Lists) -> str:
    """How much deeper than their key the source's entries stand."""
    if lists.source.flow:
        return "  "
    scalars = [item for item in lists.source.items if item.kind == "scalar"]
    return " " * max(len(_dash(text, scalars[0])) - lists.source_key.column, 0)


def _block(text: str, items: Sequence[Node], indent: str, eol: str) -> str:
    """Entries as lines of a block list: the lines they had, moved to this indentation."""
    lines = []
    for item in items:
        start, end = _lines_of(text, item) if _is_block(text, item) else (0, 0)
        line = text[start:end].strip() if end else f"- {text[item.start : item.end]}"
        lines.append(f"{indent}{line}{eol}")
    return "".join(lines)


def _flow(text: str, items: Sequence[Node]) -> str:
    """Entries as they stand between brackets: quoted where they must be."""
    written = (
        text[item.start : item.end] if not item.plain or not _FLOW_UNSAFE.search(item.value) else "" for item in items
    )
    return ", ".join(w or "'" + item.value.replace("'", "''") + "'" for w, item in zip(written, items, strict=True))


def _is_block(text: str, item: Node) -> bool:
    return _DASH.fullmatch(text, text.rfind("\n", 0, item.start) + 1, item.start) is not None


def _dash(text: str, item: Node) -> str:
    """The indentation of a block list's entry."""
    found = _DASH.fullmatch(text, text.rfind("\n", 0, item.start) + 1, item.start)
    if found is None or item.kind != "scalar":
        raise _Unsure
    return found[1]


def _lines_of(text: str, item: Node) -> tuple[int, int]:
    """The lines of a block list's entry, line break included."""
    _dash(text, item)
    return text.rfind("\n", 0, item.start) + 1, _line_end(text, item.end)


def _line_end(text: str, pos: int) -> int:
    at = text.find("\n", pos)
    return len(text) if at < 0 else at + 1


def _apply(text: str, edits: Sequence[Edit]) -> str:
    pieces: list[str] = []
    past = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[past:start], new]
        past = max(past, end)
    return "".join([*pieces, text[past:]])

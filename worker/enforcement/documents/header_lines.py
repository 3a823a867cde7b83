"""Edits of an ADR's header in place: insert or keep keys, move entries, change no other byte (ADR-038 section 4)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from worker.enforcement.documents.frontmatter import HeaderError, Node, parse_header
from worker.enforcement.documents.part_names import FILES

FIELDS = ("adr_id", "title", "status")
LISTS = frozenset(("create", "modify", "docs", "delete"))

#: Start, end (excluded) and replacement text.
_Edit = tuple[int, int, str]
_DASH = re.compile(r"([ ]*)-[ ]+")
_FLOW_UNSAFE = re.compile(r"[,\[\]{}#]|: ")
_KEY = re.compile(r"[\"']?([A-Za-z_][\w.-]{0,60})[\"']?\s{0,20}:(?=\s|$)")


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """A top-level key of a YAML header and the lines of its value, up to but excluding the line ``end``."""

    key: str
    start: int
    end: int


def find_entries(yaml_text: str) -> dict[str, HeaderEntry]:
    """Return the top-level entries of a YAML header by key, even if the YAML is broken."""
    lines = yaml_text.split("\n")
    starts = [(found[1], n) for n, line in enumerate(lines) if (found := _KEY.match(line))]
    ends = [*[n for _, n in starts[1:]], len(lines)][: len(starts)]
    return {
        name: HeaderEntry(name, start, _trim_end(lines, start, end))
        for (name, start), end in zip(starts, ends, strict=True)
    }


def parse_mapping(yaml_text: str) -> Node | None:
    """Parse a YAML header and return its root mapping, or None if the header is not a valid mapping."""
    try:
        root = parse_header(yaml_text)
    except HeaderError:
        return None
    return root if root is not None and root.kind == "mapping" else None


def is_editable_by_lines(yaml_text: str) -> bool:
    """Return True if each top-level key of the header has lines of its own, so that a key can be replaced."""
    root = parse_mapping(yaml_text)
    return (
        root is not None
        and not root.bracketed
        and {name.value for name, _ in root.pairs} == set(find_entries(yaml_text))
    )


def key_lines(yaml_text: str, key: str) -> str:
    """Return the lines of a header key and its value, or an empty string if the key or its value is missing."""
    root, found = parse_mapping(yaml_text), find_entries(yaml_text).get(key)
    value = root.find_value(key) if root is not None else None
    if found is None or value is None or value.is_null or (value.kind == "scalar" and not value.value.strip()):
        return ""
    return "\n".join(line.rstrip() for line in yaml_text.split("\n")[found.start : found.end])


def replace_key(yaml_text: str, key: str, lines: str) -> str | None:
    """Return the header with the lines of one key replaced, or inserted if the key is missing.

    Return None if the header cannot be edited by lines, or another value would change.
    """
    before, here = parse_mapping(yaml_text), find_entries(yaml_text)
    if before is None or not is_editable_by_lines(yaml_text):
        return None
    all_lines = yaml_text.split("\n")
    old = here.get(key)
    start, end = (old.start, old.end) if old else (_find_insertion_line(here, key, all_lines),) * 2
    after = "\n".join([*all_lines[:start], lines, *all_lines[end:]])
    root = parse_mapping(after)
    if root is None or root.find_value(key) is None:
        return None
    same = all(
        _fingerprint_value(root.find_value(k)) == _fingerprint_value(before.find_value(k)) for k in here if k != key
    )
    return after if same and {name.value for name, _ in root.pairs} == {*here, key} else None


def keep_missing_keys(new: str, old: str) -> str | None:
    """Return a new YAML header, extended by the keys that only the old header has.

    Return None if the new header lacks ``files`` and the old lines are not YAML.
    """
    lines = old.split("\n")
    present = find_entries(new)
    for name, block in find_entries(old).items():
        if name in present:
            continue
        kept = "\n".join(lines[block.start : block.end])
        longer = f"{new.rstrip()}\n{kept}"
        if parse_mapping(kept) is not None and parse_mapping(longer) is not None:
            new = longer
        elif name == FILES:
            return None
    return new


def keep_unnamed_paths(new: str, old: str, named: Iterable[int]) -> str | None:
    """Return the new ``files`` lines, extended by the lists of paths that only the old lines have.

    Return None if an old path would be lost. Old lines that an issue named (``named``, from 0) may disappear.
    """
    lost = set(named)
    before = list(_find_paths(old))
    if not any(True for _ in _find_paths(new)) and before:
        return None
    for name, block in _find_lists(old).items():
        if name in _find_lists(new) or any(line in lost for listed, line, _ in before if listed == name):
            continue
        inner = [line for line in new.split("\n")[1:] if line.strip()]
        width = _indent_width(inner[0]) if inner else 2
        lines = old.split("\n")[block.start : block.end]
        new = "\n".join([new.rstrip(), *(" " * width + line[_indent_width(lines[0]) :] for line in lines)])
    after = {path for _, _, path in _find_paths(new)}
    return new if all(path in after for _, line, path in before if line not in lost) else None


def _find_paths(files: str) -> Iterator[tuple[str, int, str]]:
    root = parse_mapping(files)
    value = root.find_value(FILES) if root is not None else None
    for name, entries in value.pairs if value is not None else ():
        items = entries.items if entries.kind == "sequence" else [entries] if entries.kind == "scalar" else []
        for item in items:
            if item.kind == "scalar" and not item.is_null:
                yield name.value, item.line, item.value


def _find_lists(files: str) -> dict[str, HeaderEntry]:
    first, *rest = files.split("\n")
    inner = [line for line in rest if line.strip()]
    if first.partition(":")[2].strip() or not inner:
        return {}
    depth = _indent_width(inner[0])
    found = find_entries(
        "\n".join(["", *(line[depth:] if line[:depth].isspace() or not depth else "" for line in rest)])
    )
    return {name: block for name, block in found.items() if name in LISTS}


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _find_insertion_line(here: dict[str, HeaderEntry], key: str, lines: list[str]) -> int:
    if key in FIELDS:
        return max((here[name].end for name in FIELDS[: FIELDS.index(key)] if name in here), default=0)
    last = max((block.end for block in here.values()), default=0)
    return last or _trim_end(lines, 0, len(lines))


def _trim_end(lines: list[str], start: int, end: int) -> int:
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _fingerprint_value(node: Node | None) -> object:
    """Return a summary of a YAML value for comparisons, without its nested values."""
    return node and (node.kind, node.value, len(node.items), len(node.pairs))


def move_entries(header: str, paths: set[str], *, source: str, target: str) -> str | None:
    """Return a YAML header with paths moved from the list ``files.<source>`` to the list ``files.<target>``.

    Return None if the header cannot be edited safely.
    """
    try:
        lists = _FileLists.from_header(header, source, target)
        if lists is None:
            return None
        leaving = [item for item in lists.source.items if item.value in paths]
        kept = [item.value for item in lists.source.items if item.value not in paths]
        there = [item.value for item in lists.target.items] if lists.target else []
        known = set(there)
        first_of = {item.value: item for item in reversed(leaving) if item.value not in known}
        arriving = [item for item in leaving if first_of.get(item.value) is item]
        edits = [
            *_removal_edits(header, lists, leaving),
            *(_insertion_edits(header, lists, arriving, target) if arriving else []),
        ]
        edited = _apply_edits(header, edits)
        after = _FileLists.from_header(edited, source, target)
    except (_NotEditable, HeaderError):
        return None
    wanted = (kept, there + [item.value for item in arriving])
    got = after and (
        [i.value for i in after.source.items],
        [i.value for i in after.target.items] if after.target else [],
    )
    return edited if got == wanted and after is not None and after.others == lists.others else None


class _NotEditable(Exception):
    """Raised if a YAML header cannot be edited safely."""


@dataclass(slots=True)
class _FileLists:
    files: Node
    source_key: Node
    source: Node
    target_key: Node | None
    target: Node | None
    others: tuple[list[str], list[str]]

    @classmethod
    def from_header(cls, header: str, source: str, target: str) -> _FileLists | None:
        root = parse_header(header)
        files = root.find_value("files") if root is not None else None
        if root is None or files is None:
            return None
        pairs = {key.value: (key, value) for key, value in files.pairs}
        if source not in pairs or len(pairs) != len(files.pairs):
            return None
        target_key, target_node = pairs.get(target, (None, None))
        others = ([key.value for key, _ in root.pairs], [name for name in pairs if name != target])
        return cls(files, *pairs[source], target_key, target_node, others)


def _removal_edits(text: str, lists: _FileLists, leaving: Sequence[Node]) -> list[_Edit]:
    items = lists.source.items
    if lists.source.bracketed:
        if len(leaving) == len(items):
            return [(items[0].start, items[-1].end, "")]
        return list(_flow_removals(items, leaving))
    edits = [(*_entry_lines(text, item), "") for item in leaving]
    if len(leaving) == len(items):
        colon = text.index(":", lists.source_key.end) + 1
        edits.append((colon, colon, " []"))
    return edits


def _flow_removals(items: Sequence[Node], leaving: Sequence[Node]) -> Iterator[_Edit]:
    gone = {id(item) for item in leaving}
    stays_before = False
    for at, item in enumerate(items):
        if id(item) not in gone:
            stays_before = True
        elif stays_before:
            yield items[at - 1].end, item.end, ""
        else:
            yield item.start, items[at + 1].start, ""


def _insertion_edits(text: str, lists: _FileLists, arriving: Sequence[Node], target: str) -> list[_Edit]:
    eol = "\r\n" if "\r\n" in text else "\n"
    node, key = lists.target, lists.target_key
    if node is not None and node.kind == "sequence":
        if node.bracketed:
            at = node.items[-1].end if node.items else node.start + 1
            return [(at, at, (", " if node.items else "") + _format_flow(text, arriving))]
        indent = _dash_indent(text, node.items[-1])
        end = _entry_lines(text, node.items[-1])[1]
        return [(end, end, _format_block(text, arriving, indent, eol))]
    if node is not None and not node.is_null:
        raise _NotEditable
    place = key or lists.source_key
    if lists.files.bracketed:
        if node is not None:
            return [(node.start, node.end, f" [{_format_flow(text, arriving)}]")]
        return [(place.start, place.start, f"{target}: [{_format_flow(text, arriving)}], ")]
    margin = text[text.rfind("\n", 0, place.start) + 1 : place.start]
    if margin.strip():
        raise _NotEditable
    if node is not None:
        edits: list[_Edit] = [(node.start, node.end, "")] if node.end > node.start else []
        line_end = _line_end(text, place.end)
        return [*edits, (line_end, line_end, _format_block(text, arriving, margin + _indent_step(text, lists), eol))]
    at = place.start - len(margin)
    return [
        (at, at, f"{margin}{target}:{eol}" + _format_block(text, arriving, margin + _indent_step(text, lists), eol))
    ]


def _indent_step(text: str, lists: _FileLists) -> str:
    if lists.source.bracketed:
        return "  "
    scalars = [item for item in lists.source.items if item.kind == "scalar"]
    return " " * max(len(_dash_indent(text, scalars[0])) - lists.source_key.column, 0)


def _format_block(text: str, items: Sequence[Node], indent: str, eol: str) -> str:
    lines = []
    for item in items:
        line = f"- {text[item.start : item.end]}"
        if _DASH.fullmatch(text, text.rfind("\n", 0, item.start) + 1, item.start):
            line = text[slice(*_entry_lines(text, item))].strip()
        lines.append(f"{indent}{line}{eol}")
    return "".join(lines)


def _format_flow(text: str, items: Sequence[Node]) -> str:
    written = (
        text[item.start : item.end] if not item.plain or not _FLOW_UNSAFE.search(item.value) else "" for item in items
    )
    return ", ".join(w or "'" + item.value.replace("'", "''") + "'" for w, item in zip(written, items, strict=True))


def _dash_indent(text: str, item: Node) -> str:
    found = _DASH.fullmatch(text, text.rfind("\n", 0, item.start) + 1, item.start)
    if found is None or item.kind != "scalar":
        raise _NotEditable
    return found[1]


def _entry_lines(text: str, item: Node) -> tuple[int, int]:
    _dash_indent(text, item)
    return text.rfind("\n", 0, item.start) + 1, _line_end(text, item.end)


def _line_end(text: str, pos: int) -> int:
    at = text.find("\n", pos)
    return len(text) if at < 0 else at + 1


def _apply_edits(text: str, edits: Sequence[_Edit]) -> str:
    pieces: list[str] = []
    past = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[past:start], new]
        past = max(past, end)
    return "".join([*pieces, text[past:]])

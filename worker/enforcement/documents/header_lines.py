"""An ADR's header by its lines: one key taken out, put in or kept, and no other byte changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from worker.enforcement.documents.frontmatter import HeaderError, Node, read_header
from worker.enforcement.documents.part import FILES

#: The order in which a missing key is put in; any other goes to the end.
FIELDS = ("adr_id", "title", "status")
#: The lists of ``files``.
LISTS = frozenset(("create", "modify", "docs", "delete"))

_KEY = re.compile(r"[\"']?([A-Za-z_][\w.-]{0,60})[\"']?\s{0,20}:(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Block:
    """A key of the top level with its value: the lines from ``start`` up to, not including, ``end``."""

    key: str
    start: int
    end: int


def blocks(yaml_text: str) -> dict[str, Block]:
    """The top keys of a header, also of a broken one, by name; the last one of a name counts."""
    lines = yaml_text.split("\n")
    starts = [(found[1], n) for n, line in enumerate(lines) if (found := _KEY.match(line))]
    ends = [*[n for _, n in starts[1:]], len(lines)][: len(starts)]
    return {
        name: Block(name, start, _trimmed(lines, start, end)) for (name, start), end in zip(starts, ends, strict=True)
    }


def mapping(yaml_text: str) -> Node | None:
    """The header's mapping; None when it is not a mapping, or no YAML."""
    try:
        root = read_header(yaml_text)
    except HeaderError:
        return None
    return root if root is not None and root.kind == "mapping" else None


def by_lines(yaml_text: str) -> bool:
    """True when each key of the header is in its own lines, so that one can be exchanged."""
    root = mapping(yaml_text)
    return root is not None and not root.flow and {name.value for name, _ in root.pairs} == set(blocks(yaml_text))


def key_lines(yaml_text: str, key: str) -> str:
    """The lines of one key and its value; empty without it, or when it has no value."""
    root, found = mapping(yaml_text), blocks(yaml_text).get(key)
    value = root.get(key) if root is not None else None
    if found is None or value is None or value.null or (value.kind == "scalar" and not value.value.strip()):
        return ""
    return "\n".join(line.rstrip() for line in yaml_text.split("\n")[found.start : found.end])


def with_key(yaml_text: str, key: str, lines: str) -> str | None:
    """The header with these lines for a key: in the place of the old ones, else behind the fields before it.

    Returns:
        None when another value would change with it, or the header cannot be edited by lines.
    """
    before, here = mapping(yaml_text), blocks(yaml_text)
    if before is None or not by_lines(yaml_text):
        return None
    all_lines = yaml_text.split("\n")
    old = here.get(key)
    start, end = (old.start, old.end) if old else (_place(here, key, all_lines),) * 2
    after = "\n".join([*all_lines[:start], lines, *all_lines[end:]])
    root = mapping(after)
    if root is None or root.get(key) is None:
        return None
    same = all(_value(root.get(k)) == _value(before.get(k)) for k in here if k != key)
    return after if same and {name.value for name, _ in root.pairs} == {*here, key} else None


def keeping(new: str, old: str) -> str | None:
    """A new header with the keys of the old one that it lacks.

    Returns:
        None when it lacks ``files``, and the old ones are not YAML by themselves.
    """
    lines = old.split("\n")
    present = blocks(new)
    for name, block in blocks(old).items():
        if name in present:
            continue
        kept = "\n".join(lines[block.start : block.end])
        longer = f"{new.rstrip()}\n{kept}"
        if mapping(kept) is not None and mapping(longer) is not None:
            new = longer
        elif name == FILES:
            return None
    return new


def with_lists_of(new: str, old: str, named: Iterable[int]) -> str | None:
    """New lines of ``files`` in which each path stands that the old ones have and no issue named.

    Args:
        new: lines of the key ``files``.
        old: those before.
        named: lines of ``old``, from 0, that issues named.

    Returns:
        The new lines, with those lists of the old ones that they lack; None when another path would be lost.
    """
    lost = set(named)
    before = list(_paths(old))
    if not any(True for _ in _paths(new)) and before:
        return None
    for name, block in _lists(old).items():
        if name in _lists(new) or any(line in lost for listed, line, _ in before if listed == name):
            continue
        new = f"{new.rstrip()}\n" + _indented(old.split("\n")[block.start : block.end], _indent(new))
    after = {path for _, _, path in _paths(new)}
    return new if all(path in after for _, line, path in before if line not in lost) else None


def _paths(files: str) -> Iterator[tuple[str, int, str]]:
    """List, line and text of each entry below ``files``."""
    root = mapping(files)
    value = root.get(FILES) if root is not None else None
    for name, entries in value.pairs if value is not None else ():
        items = entries.items if entries.kind == "sequence" else [entries] if entries.kind == "scalar" else []
        for item in items:
            if item.kind == "scalar" and not item.null:
                yield name.value, item.line, item.value


def _lists(files: str) -> dict[str, Block]:
    """The lists below ``files``, where they stand in their own lines."""
    first, *rest = files.split("\n")
    inner = [line for line in rest if line.strip()]
    if first.partition(":")[2].strip() or not inner:
        return {}
    depth = len(inner[0]) - len(inner[0].lstrip(" "))
    found = blocks("\n".join(["", *(line[depth:] if line[:depth].isspace() or not depth else "" for line in rest)]))
    return {name: block for name, block in found.items() if name in LISTS}


def _indent(files: str) -> int:
    """How far the lists below ``files`` are indented."""
    inner = [line for line in files.split("\n")[1:] if line.strip()]
    return len(inner[0]) - len(inner[0].lstrip(" ")) if inner else 2


def _indented(lines: list[str], width: int) -> str:
    depth = len(lines[0]) - len(lines[0].lstrip(" "))
    return "\n".join(" " * width + line[depth:] for line in lines)


def _place(here: dict[str, Block], key: str, lines: list[str]) -> int:
    """The line before which a missing key goes."""
    if key in FIELDS:
        return max((here[name].end for name in FIELDS[: FIELDS.index(key)] if name in here), default=0)
    last = max((block.end for block in here.values()), default=0)
    return last or _trimmed(lines, 0, len(lines))


def _trimmed(lines: list[str], start: int, end: int) -> int:
    """The end of a block without the blank lines and comments behind it."""
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _value(node: Node | None) -> object:
    """What shows that a value is the same; not walked, because aliases explode."""
    return node and (node.kind, node.value, len(node.items), len(node.pairs))

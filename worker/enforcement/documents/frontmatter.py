"""An ADR's YAML header as a tree of nodes with positions, limited in size, depth and nodes.

``safe_load`` is not used, because in foreign input aliases explode, ``036`` becomes 30 and duplicate keys vanish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # without libyaml: the same events, more slowly
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

MAX_CHARS = 65_536
MAX_DEPTH = 32
MAX_NODES = 2_000
MAX_ALIASES = 100

_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class HeaderError(ValueError):
    """Raised if the header of a document is not valid YAML. ``line`` counts from 0 within the header."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


class HeaderTooComplex(HeaderError):
    """Raised if a YAML header is too long, too deep or has too many values."""


@dataclass(slots=True, eq=False)
class Node:
    """A value in a YAML header with its position. Positions, lines and columns count from 0.

    Attributes:
        value: a scalar's text, always a string.
        plain: a scalar without quotes.
        bracketed: a collection in brackets.
    """

    kind: Literal["scalar", "mapping", "sequence"]
    start: int
    line: int
    column: int
    end: int = 0
    value: str = ""
    plain: bool = False
    bracketed: bool = False
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    @property
    def is_null(self) -> bool:
        """Return True if the value is missing, written in YAML as nothing, ``~`` or ``null``."""
        return self.kind == "scalar" and self.plain and self.value in _NULLS

    def find_value(self, key: str) -> Node | None:
        """Return the last value that a mapping has for a key, or None if the key is missing."""
        for name, value in reversed(self.pairs):
            if name.kind == "scalar" and name.value == key:
                return value
        return None

    def find_duplicates(self) -> Iterator[Node]:
        """Yield each key of a mapping that repeats an earlier key."""
        seen: set[str] = set()
        for name in (name for name, _ in self.pairs if name.kind == "scalar"):
            if name.value in seen:
                yield name
            seen.add(name.value)


def parse_header(text: str) -> Node | None:
    """Parse the YAML text of a header and return its root node, or None if the text is blank.

    Raises ``HeaderTooComplex`` beyond the limits of this module, and ``HeaderError`` for anything but a plain YAML
    document.
    """
    if len(text) > MAX_CHARS:
        raise HeaderTooComplex(f"> {MAX_CHARS} characters")
    try:
        return _Builder().build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise HeaderError(error.problem or "no YAML", mark.line if mark else 0) from None
    except (yaml.YAMLError, UnicodeError) as error:  # control characters, lone surrogates
        raise HeaderError(str(getattr(error, "reason", None) or "unreadable characters")) from None


class _Builder:
    """Builds a tree of nodes from the events of a YAML parser, and enforces limits on its size."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.open: list[Node] = []
        self.keys: list[Node | None] = []  # the key whose value comes next, per open node
        self.anchors: dict[str, Node] = {}
        self.nodes = self.aliases = self.documents = 0

    def build(self, text: str) -> Node | None:
        for event in yaml.parse(text, _Loader):
            if isinstance(event, yaml.ScalarEvent):
                self._add_node(self._make_node("scalar", event), event.anchor)
            elif isinstance(event, yaml.MappingStartEvent):
                self._open_node(self._make_node("mapping", event), event.anchor)
            elif isinstance(event, yaml.SequenceStartEvent):
                self._open_node(self._make_node("sequence", event), event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.keys.pop()
                end: Any = event.end_mark  # the parser always sets it
                self.open.pop().end = end.index
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise HeaderError("several documents")
        return self.root

    def _make_node(self, kind: Literal["scalar", "mapping", "sequence"], event: Any) -> Node:
        self.nodes += 1
        mark: yaml.Mark = event.start_mark
        if self.nodes > MAX_NODES:
            raise HeaderTooComplex(f"> {MAX_NODES} values", mark.line)
        if event.tag is not None and event.tag not in _TAGS and event.tag != "!":
            raise HeaderError(f"tag {event.tag}", mark.line)
        node = Node(kind, mark.index, mark.line, mark.column, event.end_mark.index)
        if kind == "scalar":
            node.value, node.plain = event.value, bool(event.implicit[0])
        else:
            node.bracketed = bool(event.flow_style)
        return node

    def _add_alias(self, event: Any) -> None:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise HeaderTooComplex(f"> {MAX_ALIASES} aliases", event.start_mark.line)
        if event.anchor not in self.anchors:
            raise HeaderError(f"unknown alias {event.anchor}", event.start_mark.line)
        self._add_node(self.anchors[event.anchor], None)

    def _open_node(self, node: Node, anchor: str | None) -> None:
        if len(self.open) >= MAX_DEPTH:
            raise HeaderTooComplex(f"> {MAX_DEPTH} levels", node.line)
        self._add_node(node, anchor)
        self.open.append(node)
        self.keys.append(None)

    def _add_node(self, node: Node, anchor: str | None) -> None:
        if anchor:
            self.anchors[anchor] = node
        if not self.open:
            self.root = node
        elif self.open[-1].kind == "sequence":
            self.open[-1].items.append(node)
        elif (key := self.keys[-1]) is None:
            self.keys[-1] = node
        else:
            self.open[-1].pairs.append((key, node))
            self.keys[-1] = None

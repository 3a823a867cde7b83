"""Reads the values of a policy file by the types of the fields they are for, and collects the faults."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import Enum
from typing import Any

from worker.enforcement.documents.frontmatter import Node
from worker.enforcement.policies.problem import Problem

#: What an option of any form may hold, aliases written out.
MAX_VALUES, MAX_DEPTH = 10_000, 40
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class Reader:
    """Reads nodes and collects problems; what cannot be read gives None."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, node: Node, path: str, message: str) -> None:
        """Note a problem at a node."""
        self.problems.append(Problem(node.line + 1, node.column + 1, path, message))

    def mapping(self, node: Node, path: str, known: Collection[str]) -> dict[str, Node]:
        """The values of a mapping by their keys; keys that are unknown or twice there are problems."""
        if node.null:
            return {}
        if node.kind != "mapping":
            self.wrong(node, path, "must be a mapping")
            return {}
        for twice in node.duplicates():
            self.wrong(twice, path, f"{twice.value!r} is there twice")
        found = {}
        for key, value in node.pairs:
            if key.kind == "scalar" and key.value in known:
                found[key.value] = value
            else:
                near = get_close_matches(key.value, list(known), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
                self.wrong(key, path, f"{key.value!r} is unknown; {hint}")
        return found

    def values(self, node: Node, path: str, made: type[Any], skip: Collection[str] = ()) -> dict[str, Any] | None:
        """The arguments for a dataclass; None when one of them cannot be read."""
        wanted = settable(made, skip)
        before = len(self.problems)
        hints = typing.get_type_hints(made)
        values = {
            key: self.value(value, f"{path}.{key}", hints[key])
            for key, value in self.mapping(node, path, wanted.keys()).items()
        }
        return values if len(self.problems) == before else None

    def value(self, node: Node, path: str, kind: Any) -> Any:
        """A value of a type: str, int, bool, an enumeration, a tuple of these, or a mapping of anything."""
        origin = typing.get_origin(kind)
        if origin is tuple:
            items = [node] if node.kind == "scalar" and not node.null else node.items
            if node.kind == "mapping":
                self.wrong(node, path, "must be a list")
            one = typing.get_args(kind)[0]
            return tuple(self.value(item, f"{path}[{number}]", one) for number, item in enumerate(items))
        if origin is not None and issubclass(origin, Mapping):
            if node.kind != "mapping":
                self.wrong(node, path, "must be a mapping")
            try:
                return plain(node)
            except ValueError as error:
                self.wrong(node, path, str(error))
                return None
        if node.kind != "scalar":
            self.wrong(node, path, "must be a single value")
            return None
        return self._scalar(node, path, kind)

    def _scalar(self, node: Node, path: str, kind: Any) -> Any:
        if kind is bool:
            if not node.plain or node.value not in _BOOLEANS:
                self.wrong(node, path, f"must be true or false, not {node.value!r}")
            return _BOOLEANS.get(node.value)
        if kind is int:
            if not node.plain or not node.value.lstrip("-").isdecimal() or len(node.value) > 12:
                self.wrong(node, path, f"must be a whole number, not {node.value!r}")
                return None
            return int(node.value)
        if isinstance(kind, type) and issubclass(kind, Enum):
            names = [str(member.value) for member in kind]
            if node.value not in names:
                self.wrong(node, path, f"must be one of {', '.join(names)}, not {node.value!r}")
                return None
            return kind(node.value)
        if node.null:
            self.wrong(node, path, "must not be empty")
        return node.value


def settable(made: type[Any], skip: Collection[str] = ()) -> dict[str, Field[Any]]:
    """The fields of a dataclass that a policy file may set: those that say what they are for."""
    return {each.name: each for each in fields(made) if "what" in each.metadata and each.name not in skip}


def default_of(each: Field[Any]) -> Any:
    """A field's default."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def plain(node: Node) -> Any:
    """A node as Python values, by YAML 1.2's core schema.

    Raises:
        ValueError: aliases make it larger than ``MAX_VALUES`` or put it into itself.
    """
    return _plain(node, [MAX_VALUES], MAX_DEPTH)


def _plain(node: Node, left: list[int], depth: int) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise ValueError(f"holds more than {MAX_VALUES} values or {MAX_DEPTH} levels")
    if node.kind == "mapping":
        return {key.value: _plain(value, left, depth - 1) for key, value in node.pairs}
    if node.kind == "sequence":
        return [_plain(item, left, depth - 1) for item in node.items]
    if node.null:
        return None
    if not node.plain:
        return node.value
    if node.value in _BOOLEANS:
        return _BOOLEANS[node.value]
    for kind in (int, float):
        try:
            return kind(node.value) if "_" not in node.value else node.value
        except ValueError:
            continue
    return node.value

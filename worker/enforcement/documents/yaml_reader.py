"""Reader for YAML written by users: size-limited, and every problem has line and column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from api_client.contract.value_kinds import Findings, InvalidValue, Kind, PlainScalar, Problem, Where
from worker.enforcement.documents.frontmatter import MAX_DEPTH, MAX_NODES, HeaderError, Node, parse_header


def read_yaml(text: str, kind: Kind, empty: str) -> tuple[Any, Callable[..., tuple[int, int]]]:
    """Parse a user's YAML text. Return its value and a function that finds the line and column of a value.

    ``kind`` checks and converts the parsed data. Raises ``InvalidValue`` with every problem in order.
    """
    try:
        root = parse_header(text)
        if root is None:
            raise InvalidValue([Problem((), empty, line=1, column=1)])
        values, found = _ValueBuilder(), Findings()
        data = values.build_value(root, ())
    except HeaderError as error:
        raise InvalidValue([Problem((), f"is not usable YAML: {error}", line=error.line + 1, column=1)]) from None
    result = found.read_part(kind, data)
    for each in found.problems:
        line, column = _locate_part(root, each.where, of_key=each.of_key)
        values.problems.append(replace(each, line=line, column=column))
    if values.problems:
        raise InvalidValue(sorted(values.problems, key=lambda each: (each.line, each.column)))
    return result, lambda *where: _locate_part(root, where)


class _ValueBuilder:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._left = MAX_NODES

    def build_value(self, node: Node, where: Where) -> Any:
        self._left -= 1
        if self._left < 0 or len(where) > MAX_DEPTH:
            if self._left >= -1:
                self._add_problem(f"holds > {MAX_NODES} values or > {MAX_DEPTH} levels, aliases followed", node, where)
            self._left = -2
            return None
        if node.kind == "sequence":
            return [self.build_value(item, (*where, number)) for number, item in enumerate(node.items)]
        if node.kind == "scalar":
            return None if node.is_null else PlainScalar(node.value) if node.plain else node.value
        found: dict[str, Any] = {}
        for key, value in node.pairs:
            if key.kind != "scalar":
                raise HeaderError("a key must be a text", key.line)
            if key.value in found:
                self._add_problem("is there twice", key, (*where, key.value))
            found[key.value] = self.build_value(value, (*where, key.value))
        return found

    def _add_problem(self, message: str, node: Node, where: Where) -> None:
        self.problems.append(Problem(where, message, line=node.line + 1, column=node.column + 1))


def _locate_part(root: Node, where: Where, *, of_key: bool = False) -> tuple[int, int]:
    at = node = root
    for depth, step in enumerate(where, 1):
        if isinstance(step, int):
            if step >= len(node.items):
                break
            at = node = node.items[step]
            continue
        pair = next((pair for pair in reversed(node.pairs) if pair[0].value == step), None)
        if pair is None or (pair[1].is_null and depth == len(where) and not of_key):
            break
        node = pair[1]
        at = pair[0] if of_key and depth == len(where) else node
    return at.line + 1, at.column + 1

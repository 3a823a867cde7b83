"""Names of the product's code that the field does not use, each with the term to use instead (docs/glossary.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

#: A word of an identifier -> the term of the field.
FORBIDDEN = {
    "told": "name the value: data, report, fields, reason",
    "untold": "name the value",
    "tell": "send, report, emit, show",
    "deaf": "stalled",
    "deafen": "stall",
    "pulse": "heartbeat",
    "everysec": "the append-only file's fsync, by its setting's name only",
    "sighting": "a request seen",
    "sightings": "requests seen",
    "crew": "workers",
    "tally": "count",
    "holding": "fenced",
    "mend": "repair",
    "mends": "repairs",
    "mended": "repaired",
}
#: Names that stay: stored records, logs of events and validators of others have them.
KEPT = {"TurnMended", "mended", "_mended", "mends_files"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def names_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module defines or assigns: functions, classes, parameters, variables."""
    for node in ast.walk(tree):
        if isinstance(node, _NAMED):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words_of(name: str) -> list[str]:
    """The words of an identifier, in lower case: ``tell_later`` and ``TellLater`` are ``tell`` and ``later``."""
    return [word.lower() for part in name.split("_") for word in _WORD.findall(part)]


def unwanted(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, name and the term to use instead of each name in a file that has a forbidden word."""
    for line, name in names_of(ast.parse(path.read_text(encoding="utf-8"))):
        for word in () if name in KEPT else words_of(name):
            if word in FORBIDDEN:
                yield line, name, FORBIDDEN[word]

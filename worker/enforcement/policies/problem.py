"""Something that is wrong in a policy file, with its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem. ``line`` and ``column`` count from 1; ``path`` is such as ``rules[2].severity``."""

    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{self.line}:{self.column}: {where}{self.message}"

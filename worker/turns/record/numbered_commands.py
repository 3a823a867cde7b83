"""The numbered commands a holder sent, kept until it gives the turn back, because a store may forget.

A server whose power fails loses what was not yet on its disk, and a replica that takes over lacks what it had not yet
received; both had answered. The store carries out no command before the one in front of it: it answers which number it
has, and the holder sends the later ones again, each under its own number. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Outbox(Generic[T]):
    """The commands of one claim, numbered 1, 2, 3, ..."""

    commands: list[T] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The number of the next command."""
        return len(self.commands) + 1

    def add(self, command: T) -> None:
        """Keep a command. It is sent again with the same number."""
        self.commands.append(command)

    def between(self, known: int, number: int) -> list[T]:
        """The commands behind number ``known`` and before ``number``, in order."""
        return self.commands[known : number - 1]

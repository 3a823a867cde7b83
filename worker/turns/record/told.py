"""What the holder of a turn told its log: kept until it gives the turn back, because a store may forget.

A server whose power fails loses what was not yet on its disk, and a replica that takes over lacks what it had not yet
received; both had answered. The holder's commands are numbered, and the store does none before the one in front of it,
so it says which it knows, and the holder sends the others again, each under its own number. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from worker.turns.transitions.moves import EventData


@dataclass(slots=True)
class Told:
    """The commands of one claim, numbered 1, 2, 3, ...; of each its events."""

    commands: list[list[EventData]] = field(default_factory=list)

    def add(self, events: list[EventData]) -> int:
        """The number of a new command. Whoever sends it again sends it with the same number."""
        self.commands.append(events)
        return len(self.commands)

    def between(self, known: int, number: int) -> list[tuple[int, list[EventData]]]:
        """The commands behind number ``known`` and before ``number``, with their numbers, in order."""
        return list(enumerate(self.commands[known : number - 1], known + 1))

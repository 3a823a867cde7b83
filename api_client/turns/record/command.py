"""A command to the store as a value: the words to send, and how its reply is read. Pure; who sends it is ``ledger``.

A holder's commands are numbered and kept until it gives the turn back, because a store may forget: a server whose power
fails loses what was not yet on its disk, and a replica that takes over lacks what it had not yet received; both had
answered. The store carries out no command before the one in front of it: it answers which number it has, and the holder
sends the later ones again, each under its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from api_client.contract.values.frozen import frozen
from api_client.store.commands import Word

T = TypeVar("T")


@frozen(slots=True)
class Command(Generic[T]):
    """One command.

    Attributes:
        read: the typed result of a reply. Raises ``Fenced`` where the reply says that the turn is not the sender's.
        words: of a plain command, all its words, such as ``("HGETALL", key)``; of a script, its arguments.
        script: the name of the Lua script, or empty.
        keys: the keys of the script.
        ahead: another plain command's words, which is sent before it each time: long texts that the script names.
    """

    read: Callable[[Any], T]
    words: tuple[Word, ...]
    script: str = ""
    keys: tuple[str, ...] = ()
    ahead: tuple[Word, ...] = ()

    def sent(self, sha: str) -> tuple[Word, ...]:
        """A script's command as it goes over the wire; ``sha`` names its text."""
        return ("EVALSHA", sha, len(self.keys), *self.keys, *self.words)


#: Several commands of which each follows from the results before it: yields commands, is sent their results, returns
#: its own. So one text serves a blocking connection and an asynchronous one.
Exchange: TypeAlias = Generator[Command[Any], Any, T]


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

    def clear(self) -> None:
        """Forget them: the turn is given back. Each knows its claim, and the claim them: a circle else."""
        self.commands.clear()


def hash_of(pairs: Any) -> dict[bytes, bytes]:
    """A hash: connections give it as a mapping, or flat as it comes over the wire."""
    return dict(pairs) if isinstance(pairs, dict) else dict(zip(pairs[::2], pairs[1::2], strict=True))


def written_by_lua(pairs: Any) -> dict[bytes, bytes]:
    """Fields that a command wrote, as the record has them: Lua answers its numbers as such."""
    values = [value if isinstance(value, bytes) else b"%d" % value for value in pairs[1::2]]
    return dict(zip(pairs[::2], values, strict=True))

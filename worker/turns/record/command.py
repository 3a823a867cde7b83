"""A command to the store as a value: what is sent, and how its reply is read. Pure; who sends it is ``ledger``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from api_client.contract.commands import Word

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One command.

    Attributes:
        read: the typed result of a reply. Raises ``Fenced`` where the reply says that the turn is not the sender's.
        words: of a plain command, all its words, such as ``("HGETALL", key)``; of a script, its arguments.
        script: the name of the Lua script, or empty.
        keys: the keys of the script.
    """

    read: Callable[[Any], T]
    words: tuple[Word, ...]
    script: str = ""
    keys: tuple[str, ...] = ()

    def sent(self, sha: str) -> tuple[Word, ...]:
        """A script's command as it goes over the wire; ``sha`` names its text."""
        return ("EVALSHA", sha, len(self.keys), *self.keys, *self.words)


#: Several commands of which each follows from the results before it: yields commands, is sent their results, returns
#: its own. So one text serves a blocking connection and an asynchronous one.
Exchange: TypeAlias = Generator[Command[Any], Any, T]

"""A command to the store as a value: the words to send, and how its reply is read.

Pure; who sends it is ``ledger``. A holder's commands are numbered and kept until it gives the turn back, because a
store may forget: a server whose power fails loses what was not yet on its disk, and a server that takes over lacks
what it had not yet received; both had answered. The store carries out no command before the one in front of it: it
answers which number it has, and the holder sends the later ones again, each under its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from api_client.contract.frozen import frozen
from api_client.store.commands import Word

T = TypeVar("T")


@frozen(slots=True)
class Command(Generic[T]):
    """One command.

    Attributes:
        read: the typed result of a reply. Raises ``LeaseLost`` where the reply says that the turn is not the sender's.
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


#: Several commands of which each follows from the results before it: yields commands, is sent their results, returns
#: its own.
Exchange: TypeAlias = Generator[Command[Any], Any, T]


def text_of(value: bytes | None) -> str:
    """A value as text; empty where there is none."""
    return (value or b"").decode()


def hash_of(pairs: Any) -> dict[bytes, bytes]:
    """A hash: connections give it as a mapping, or flat as it comes over the wire."""
    return dict(pairs) if isinstance(pairs, dict) else dict(zip(pairs[::2], pairs[1::2], strict=True))

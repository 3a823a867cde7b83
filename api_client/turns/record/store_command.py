"""Store commands as values: the words to send, and a function that reads the reply.

A holder's commands are numbered, because a store may forget answered commands after a failover. It refuses a command
whose predecessor is missing, and the holder sends the missing ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from api_client.contract.frozen import checked_frozen
from api_client.store.commands import Word

T = TypeVar("T")


@checked_frozen(slots=True)
class Command(Generic[T]):
    """A command for the store, with the function that parses its reply.

    ``words`` are all words of a plain command, or the arguments of ``script``. ``ahead`` is a plain command to send
    before, with long texts to which the script refers.
    """

    read: Callable[[Any], T]
    words: tuple[Word, ...]
    script: str = ""
    keys: tuple[str, ...] = ()
    ahead: tuple[Word, ...] = ()


#: Several dependent commands: a generator that yields commands, receives their results and returns its own.
Exchange: TypeAlias = Generator[Command[Any], Any, T]


def decode_text(value: bytes | None) -> str:
    return (value or b"").decode()


def decode_hash(pairs: Any) -> dict[bytes, bytes]:
    """Convert an HGETALL reply, a mapping or a flat list, to a dict."""
    return dict(pairs) if isinstance(pairs, dict) else dict(zip(pairs[::2], pairs[1::2], strict=True))


def decode_changes(pairs: Any) -> dict[bytes, bytes]:
    """Convert the fields that a script changed to a dict. The script returns whole numbers as numbers."""
    return {
        name: value if isinstance(value, bytes) else b"%d" % value
        for name, value in zip(pairs[::2], pairs[1::2], strict=True)
    }

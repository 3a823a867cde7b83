"""Store commands as values: the words to send, and a function that reads the reply.

The ledger sends the commands. A holder's commands are numbered and kept until the turn is given back, because a store
may forget answered commands after a power failure or a failover. The store refuses a command if its predecessor is
missing and reports the last known number, so that the holder sends the missing commands again.
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
    before, with long texts to which the script refers. ``read`` raises ``LeaseLost`` if the sender lost the turn.
    """

    read: Callable[[Any], T]
    words: tuple[Word, ...]
    script: str = ""
    keys: tuple[str, ...] = ()
    ahead: tuple[Word, ...] = ()


#: Several dependent commands: a generator that yields commands, receives their results and returns its own.
Exchange: TypeAlias = Generator[Command[Any], Any, T]


def decode_text(value: bytes | None) -> str:
    """Decode a value from the store as text, or None as an empty string."""
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

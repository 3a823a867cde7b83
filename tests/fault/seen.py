"""What the interleaver knows about a turn: what is stored, and what was reported so far."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.fault.scripts import FIELDS


class Seen(NamedTuple):
    """A snapshot of a turn in the store: its record, its log's length, its keys' lifetimes and its queues."""

    state: bytes | None
    token: bytes
    next: bytes
    seq: int
    lease_until: int
    not_before: int
    stop: bytes
    outcome: bytes
    strikes: int
    delivery: int
    tokens_used: int
    token_limit: int
    others: tuple[bytes | None, ...]
    length: int
    top: bytes
    lives: tuple[int, ...]
    line: list[bytes]
    due: dict[bytes, int]
    inbox: list[bytes]

    @property
    def accepted(self) -> bytes:
        """Return the answer that is being published, or nothing."""
        return self.others[-1] or b""

    @property
    def suspended_at(self) -> str:
        """Return when the turn was last suspended, in milliseconds of the store's clock; 0 if never."""
        return (self.others[-2] or b"0").decode()

    @property
    def record(self) -> tuple[Any, ...]:
        """Return the fields that a command without effect must leave unchanged."""
        return (*self[:4], *self[5:15])


_NUMBERS = {*range(3, 6), *range(8, 12)}


def seen(raw: list[Any]) -> Seen:
    """Parse the reply of ``scripts.LOOK``."""
    fields, length, top, lives, line, due, inbox = raw
    pairs = iter(due)
    first = [int(value or 0) if at in _NUMBERS else value or b"" for at, value in enumerate(fields[:12])]
    scores = {member: int(score) for member, score in zip(pairs, pairs, strict=True)}
    return Seen._make([fields[0], *first[1:], tuple(fields[12:]), length, top, tuple(lives), line, scores, inbox])


assert FIELDS[:12] == Seen._fields[:12]
#: A turn that is not stored.
NOTHING = seen([[None] * len(FIELDS), 0, b"0-0", [-2, -2, -2, -2], [], [], []])


@dataclass(slots=True, eq=False)
class PretendTurn:
    """A turn as the pretend clients and workers know it.

    ``appends`` has the number and the length of the log before each append since the turn's last other change.
    """

    turn_id: str
    session_id: str
    number: int
    submit: tuple[Any, ...] = ()
    deadline: int = 0
    decide_by: int = 0
    decisions: set[str] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)
    stored: bool = False
    acknowledged: bool = False
    epoch: str = ""
    seen: Seen | None = None
    tokens: set[bytes] = field(default_factory=set)
    last_commit: tuple[Any, ...] = ()
    cmd: int = 0
    appends: list[tuple[int, int]] = field(default_factory=list)
    alone: bool = False
    dropped: bool = False
    told: list[tuple[str, str]] = field(default_factory=list)

    @property
    def id(self) -> bytes:
        return self.turn_id.encode()

    @property
    def finished(self) -> bool:
        return bool(self.seen and self.seen.state == b"finished")

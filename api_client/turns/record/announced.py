"""Announcements of unclaimed turns that still wait in their queue: then one is not made again. Pure.

Queues are first in, first out. As long as the message at a queue's head was announced no later than a turn, the turn's
message lies behind it, or is lost; announcing again would not have it claimed any sooner. All times are ms of the
store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.tasks import Link, queue_of
from api_client.contract.turn import TurnState

#: The fields that are read of a record.
FIELDS = (
    *("token", "state", "next", "announced", "announced_at", "not_before", "deadline_at", "double_text"),
    "delivery",
)
#: A turn is looked at again at least every this many announcement delays.
_LONGEST = 64
_AT_REST = {TurnState.QUEUED.value, TurnState.RAN.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedTurn:
    """A turn that nobody holds and that was announced.

    Attributes:
        turn_id: which. score: when it is due, as it was read.
        at: when it was announced. queue: where. deadline_at: 0 for none.
    """

    turn_id: str
    score: float
    at: int
    queue: str
    deadline_at: int


@dataclass(frozen=True, slots=True)
class Head:
    """The message at the head of a queue. ``at``: when its turn was announced; None when that turn is not waiting."""

    at: int | None


def announced(turn_id: str, score: float, record: Mapping[str, str], announce_ms: int) -> AnnouncedTurn | None:
    """Return the turn of this record; None when it is held, suspended, delayed, or not announced for another reason."""
    deadline_at = int(record.get("deadline_at") or 0)
    if record.get("token") or record.get("state") not in _AT_REST or record.get("double_text") == "interrupt":
        return None
    if int(record.get("not_before") or 0) and record.get("announced") == "1":
        return None  # it waits for its delay to end, and is announced then for the first time
    try:
        link = Link.parse(record.get("next", ""))
    except ValueError:
        return None
    times = int(record.get("announced") or 1)
    # Due is one delay behind the announcement, and the delay doubles (reap.lua); 0: it was put off since, and noted.
    at = int(record.get("announced_at") or 0) if times == 0 else int(score) - announce_ms * 2 ** min(times - 1, 6)
    queue = queue_of(link, preferred=int(record.get("delivery") or 0) > 0)  # one that never ran comes from the line
    return AnnouncedTurn(turn_id=turn_id, score=score, at=at, queue=queue, deadline_at=deadline_at)


def look_again_at(turn: AnnouncedTurn, head: Head | None, now: int, announce_ms: int) -> int | None:
    """When to look at the turn again; None: announce it now. Without a ``head`` its queue is empty."""
    over = turn.deadline_at and turn.deadline_at <= now
    if head is None or over or turn.at > now:  # announced later than now: the clock was set back
        return None
    soon = now + announce_ms
    if head.at is None:
        later = soon
    elif head.at > turn.at:
        return None
    else:
        # The head has waited so long; the turn's message gets there when it has waited as long.
        later = min(max(soon, turn.at + now - head.at), now + _LONGEST * announce_ms)
    return min(later, turn.deadline_at) if turn.deadline_at else later

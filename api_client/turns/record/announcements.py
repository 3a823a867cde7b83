"""Decides whether a waiting turn needs another announcement.

While the message at the head of a queue is older than a turn's announcement, another announcement would not speed the
turn up. All times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.tasks import ChainTask, choose_queue
from api_client.contract.turn import TurnState

FIELDS = (
    *("token", "state", "next", "announced", "announced_at", "not_before", "deadline_at", "double_text"),
    "delivery",
)
#: A turn is checked again after at most this many announcement delays.
_LONGEST = 64
_AT_REST = {TurnState.QUEUED.value, TurnState.RAN.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedTurn:
    """A turn whose task was announced to workers, but has not been claimed by a worker yet.

    ``score`` is the due time as it was read, ``at`` the time of the announcement, and ``deadline_at`` is 0 without a
    deadline.
    """

    turn_id: str
    score: float
    at: int
    queue: str
    deadline_at: int


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The oldest message of a queue. ``at`` is when its turn was announced, or None if the turn is not waiting."""

    at: int | None


def find_announcement(turn_id: str, score: float, record: Mapping[str, str], announce_ms: int) -> AnnouncedTurn | None:
    """Return the announced turn that a record describes, or None if the turn is not waiting for a worker."""
    deadline_at = int(record.get("deadline_at") or 0)
    if record.get("token") or record.get("state") not in _AT_REST or record.get("double_text") == "interrupt":
        return None
    if int(record.get("not_before") or 0) and record.get("announced") == "1":
        return None  # the turn is announced for the first time after its delay
    try:
        chain_task = ChainTask.parse(record.get("next", ""))
    except ValueError:
        return None
    times = int(record.get("announced") or 1)
    at = int(record.get("announced_at") or 0) if times == 0 else int(score) - announce_ms * 2 ** min(times - 1, 6)
    # Turns that never ran come from the fair queue.
    queue = choose_queue(chain_task, preferred=int(record.get("delivery") or 0) > 0)
    return AnnouncedTurn(turn_id=turn_id, score=score, at=at, queue=queue, deadline_at=deadline_at)


def next_check_at(turn: AnnouncedTurn, head: QueueHead | None, now: int, announce_ms: int) -> int | None:
    """Return when to check a waiting turn again, or None if its task must be published (announced) again now.

    ``head`` is the oldest message of the turn's queue, None for an empty queue.
    """
    over = turn.deadline_at and turn.deadline_at <= now
    if head is None or over or turn.at > now:  # an announcement in the future: the clock was set back
        return None
    soon = now + announce_ms
    if head.at is None:
        later = soon
    elif head.at > turn.at:
        return None
    else:
        later = min(max(soon, turn.at + now - head.at), now + _LONGEST * announce_ms)
    return min(later, turn.deadline_at) if turn.deadline_at else later

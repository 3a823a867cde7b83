"""Which turns could run now and do not, and since when. Pure.

Only a session's head can run. It waits for a worker from the moment it became due: when it was submitted, when the turn
before it ended, when its delay was over, when its worker was lost, when a person decided. What is held, parked or
paused does not wait for a worker, and neither does a turn behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from api_client.contract.tasks import QUEUES
from api_client.contract.turn import TurnState

#: What is read of each record, in this order.
FIELDS = (
    "state", "created_at", "session_id", "token", "next", "not_before", "announced", "announced_at", "parked_at",
    "since", "worker", "held_since",
)  # fmt: skip
_NUMBERS = {"not_before", "since", "held_since"}
_AT_REST = {TurnState.QUEUED, TurnState.RAN}
#: The wait for the next announcement doubles up to so many times (reap.lua).
_DOUBLINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An unfinished turn. Times in milliseconds of the store's clock; ``due`` says when somebody looks at it again.

    ``worker`` is who holds it, or held it last; ``since`` is when its agent was started, or had ended; ``held_since``
    is since when a pause holds it back, 0 for none.
    """

    turn_id: str
    due: float
    state: TurnState
    created_at: int
    session_id: str
    held: bool
    task: str
    not_before: int
    announced: int
    announced_at: int
    parked_at: int
    since: int
    held_since: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A turn that a worker of ``queue`` could take now; ``since`` in seconds since the epoch."""

    turn_id: str
    queue: str
    since: float


def row(turn_id: str, due: float, values: Sequence[bytes | None]) -> Row | None:
    """The values of ``FIELDS``; None for a turn that is gone or ended, or a damaged record."""
    texts = dict(zip(FIELDS, ((value or b"").decode("utf-8", "replace") for value in values), strict=True))
    try:
        state = TurnState(texts["state"])
        numbers = {name: int(texts[name] or 0) for name in FIELDS if name.endswith("_at") or name in _NUMBERS}
        announced = int(texts["announced"] or 1)
    except ValueError:
        return None
    if state is TurnState.FINISHED:
        return None
    return Row(
        turn_id=turn_id,
        due=due,
        state=state,
        session_id=texts["session_id"],
        held=bool(texts["token"]),
        task=texts["next"].partition("/")[0],
        announced=announced,
        worker=texts["worker"],
        **numbers,
    )


def waiting(rows: Iterable[Row], now: float, announce_seconds: float) -> list[Waiting]:
    """The turns that could run at ``now`` (seconds since the epoch), the longest waiting first."""
    heads: dict[str, Row | None] = {}
    for each in rows:
        if each.held or each.held_since or each.state not in _AT_REST:
            heads[each.session_id] = None
            continue
        head = heads.get(each.session_id, each)
        if head and (each.created_at, each.due) <= (head.created_at, head.due):
            heads[each.session_id] = each
    found = [
        Waiting(turn_id=head.turn_id, queue=QUEUES[head.task], since=_due_since(head, announce_seconds * 1000) / 1000)
        for head in heads.values()
        if head and head.task in QUEUES and head.not_before <= now * 1000
    ]
    return sorted(
        (each if each.since <= now else Waiting(turn_id=each.turn_id, queue=each.queue, since=now) for each in found),
        key=lambda each: each.since,
    )


def _due_since(head: Row, announce_ms: float) -> float:
    """When a head became due, in ms: from when it is due again and how often it was announced since.

    Each announcement is looked after one delay later, and the delay doubles. A deadline that is near shortens the last
    delay, so that the time may come out early by at most as long as the turn has waited.
    """
    if head.announced == 0:  # put off, because its announcement still waits: noted when that was made
        since = float(head.announced_at)
    else:
        doubled = min(head.announced, _DOUBLINGS + 1)
        delays = 2**doubled - 1 + 2**_DOUBLINGS * max(0, head.announced - doubled)
        since = head.due - announce_ms * delays
    return max(since, float(head.not_before), float(head.created_at))

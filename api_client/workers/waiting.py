"""What is read of an unfinished turn to say why it does not run (``reason.py``), and since when it is due. Pure.

A session's head waits for a worker from the moment it became due: when it was submitted, when the turn before it ended,
when its delay was over, when its worker was lost, when a person decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api_client.contract.counters import label
from api_client.contract.turn import TurnState, shard_of

#: What is read of each record, in this order.
FIELDS = (
    "state", "created_at", "session_id", "token", "next", "not_before", "announced", "announced_at", "parked_at",
    "since", "worker", "held_since", "held_back", "lease_until", "decide_by", "stop", "model", "stage_model", "owner",
    "key", "probes", "lacks",
)  # fmt: skip
_NUMBERS = {"not_before", "since", "held_since", "lease_until", "decide_by"}
_TEXTS = ("session_id", "worker", "held_back", "stop", "owner", "key", "probes", "lacks")
#: The wait for the next announcement doubles up to so many times (reap.lua).
_DOUBLINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An unfinished turn. Times in milliseconds of the store's clock; ``due`` says when somebody looks at it again.

    ``worker`` is who holds it, or held it last; ``since`` is when its agent was started, or had ended; ``held_since``
    is since when a pause holds it back, 0 for none. ``runs`` is the model that runs next, as a label; ``lacks`` which
    workers gave it back, and why.
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
    held_back: str = ""
    lease_until: int = 0
    decide_by: int = 0
    stop: str = ""
    runs: str = ""
    owner: str = ""
    key: str = ""
    probes: str = ""
    lacks: str = ""

    @property
    def shard(self) -> int:
        """The shard that it lives in."""
        return shard_of(self.turn_id)


def row(turn_id: str, due: float, values: Sequence[bytes | None]) -> Row | None:
    """The values of ``FIELDS``; None for a turn that is gone or ended, or a damaged record."""
    texts = dict(zip(FIELDS, ((value or b"").decode("utf-8", "replace") for value in values), strict=True))
    try:
        state = TurnState(texts["state"])
        numbers: dict[str, Any] = {
            name: int(texts[name] or 0) for name in FIELDS if name.endswith("_at") or name in _NUMBERS
        }
        announced = int(texts["announced"] or 1)
    except ValueError:
        return None
    if state is TurnState.FINISHED:
        return None
    return Row(
        turn_id=turn_id,
        due=due,
        state=state,
        held=bool(texts["token"]),
        task=texts["next"].partition("/")[0],
        announced=announced,
        runs=label(texts["stage_model"]) if texts["stage_model"] else texts["model"],
        **numbers,
        **dict[str, Any]((name, texts[name]) for name in _TEXTS),
    )


def due_since(head: Row, announce_seconds: float) -> float:
    """When a head became due, in seconds: from when it is due again and how often it was announced since.

    Each announcement is looked after one delay later, and the delay doubles. A deadline that is near shortens the last
    delay, so that the time may come out early by at most as long as the turn has waited.
    """
    if head.announced == 0:  # put off, because its announcement still waits: noted when that was made
        since = float(head.announced_at)
    else:
        doubled = min(head.announced, _DOUBLINGS + 1)
        delays = 2**doubled - 1 + 2**_DOUBLINGS * max(0, head.announced - doubled)
        since = head.due - announce_seconds * 1000 * delays
    return max(since, float(head.not_before), float(head.created_at)) / 1000

"""Selecting turns by what they are: for bulk actions and for clearing up. Reads in batches; never walks all keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from api_client.contract.keys import keys_of
from api_client.contract.turn import Outcome, TurnState
from api_client.store import Store

_BATCH = 200
#: The last is there in records of version 1 only.
_FIELDS = ("state", "outcome", "created_at", "finished_at", "request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which turns are meant; an empty field asks for all. All fields must match.

    Attributes:
        outcomes, states: names of ``Outcome`` and ``TurnState``; a turn must have one of either.
        since: finished, or else submitted, at this time or later; seconds since the epoch, 0: ever.
        model, session_id: of exactly this.
    """

    outcomes: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    since: float = 0.0
    model: str = ""
    session_id: str = ""

    @property
    def empty(self) -> bool:
        """True when every turn would match."""
        return self == Filter()

    def __str__(self) -> str:
        """The filter as one would read it in the audit log."""
        parts = [*sorted(self.outcomes), *sorted(self.states)]
        parts += [f"since={self.since:.0f}"] if self.since else []
        parts += [f"{name}={value}" for name, value in (("model", self.model), ("session", self.session_id)) if value]
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What a selection knows of a turn. Times in seconds since the epoch, 0 when not yet."""

    turn_id: str
    state: TurnState
    outcome: Outcome | None
    model: str
    session_id: str
    created_at: float
    finished_at: float

    @property
    def status(self) -> str:
        """Its outcome, or its state while it has none."""
        return (self.outcome or self.state).value


def matches(wanted: Filter, turn: Selected) -> bool:
    """Whether a turn is meant. Pure."""
    status = {turn.state.value, turn.outcome.value if turn.outcome else ""}
    return (
        (not (wanted.outcomes | wanted.states) or bool(status & (wanted.outcomes | wanted.states)))
        and (turn.finished_at or turn.created_at) >= wanted.since
        and wanted.model in ("", turn.model)
        and wanted.session_id in ("", turn.session_id)
    )


async def select(store: Store, wanted: Filter) -> list[Selected]:
    """The turns that match, oldest first. Raises as ``Store.ask``."""
    found: list[Selected] = []
    for keys in store.shards:
        unfinished = await store.ask(store.redis.zrange(keys.due, 0, -1))
        dead = await store.ask(store.redis.zrange(keys.dead, 0, -1))
        finished = await store.ask(store.redis.zrangebyscore(keys.finished, int(wanted.since * 1000), "+inf"))
        ids = [*dict.fromkeys([*unfinished, *dead, *finished])]  # each once
        for start in range(0, len(ids), _BATCH):
            read = await _read(store, ids[start : start + _BATCH])
            found += [turn for turn in read if matches(wanted, turn)]
    return sorted(found, key=lambda turn: (turn.created_at, turn.turn_id))


async def _read(store: Store, ids: Iterable[bytes]) -> list[Selected]:
    names = [turn_id.decode() for turn_id in ids]
    pipe = store.redis.pipeline(transaction=False)
    for turn_id in names:
        keys = keys_of(store.namespace, turn_id)
        pipe.hmget(keys.turn(turn_id), _FIELDS)
        pipe.hget(keys.texts(turn_id), "request")
    found = []
    read = await store.ask(pipe.execute())
    for turn_id, (state, outcome, created, finished, own), request in zip(names, read[::2], read[1::2], strict=True):
        if state and (request or own):  # gone meanwhile
            asked = json.loads(request or own)
            found.append(
                Selected(
                    turn_id=turn_id,
                    state=TurnState(state.decode()),
                    outcome=Outcome(outcome.decode()) if outcome else None,
                    model=str(asked.get("model", "")),
                    session_id=str(asked.get("session_id", "")),
                    created_at=int(created or 0) / 1000,
                    finished_at=int(finished or 0) / 1000,
                )
            )
    return found

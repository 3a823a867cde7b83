"""A turn's events without the pieces of its answers: what a page shows, however much the agent wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from api_client.contract.events import Event

#: Entries of the log one command looks at: few enough to hold the store up for a millisecond only.
_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutline:
    """The events of a turn but ``attempt.output``, in order, and how many pieces there were."""

    events: tuple[Event, ...]
    pieces: int


async def read_outline(ask: Callable[[int, int], Awaitable[Any]]) -> LogOutline:
    """Read the whole log; ``ask`` calls ``outline.lua`` with (behind this number, how many entries)."""
    events: list[Event] = []
    position, looked, pieces = 0, _BATCH, 0
    while looked == _BATCH:
        last, looked, skipped, *wires = await ask(position, _BATCH)
        position, pieces = int(last), pieces + int(skipped)
        for wire in wires:
            with suppress(ValueError):  # a damaged entry hides no other
                events.append(Event.decode(wire))
    return LogOutline(events=tuple(events), pieces=pieces)

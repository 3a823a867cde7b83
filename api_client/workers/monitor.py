"""The port of monitors: gauges of a capability, troubles that it finds, and turns that it holds back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from api_client.workers.reason import Obstacle, Wait


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge of /metrics: its value for each value of ``label``; without a label one value, under an empty text."""

    name: str
    meaning: str
    values: Mapping[str, float]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A trouble that somebody outside should hear of. The same kind and subject are the same trouble, reported once.

    ``page`` is the address of the page that shows more.
    """

    kind: str
    subject: str
    at: float
    page: str
    data: Mapping[str, str | int | float]


class Monitor:
    """Watches one capability. Override what it has to say. Each method raises ``StoreUnavailable``.

    ``look_seconds`` lie between two looks for troubles.
    """

    name: str
    look_seconds = 5.0

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return the gauges, with a value for each series from the start."""
        return ()

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return the troubles of this moment."""
        return ()

    async def find_waits(self, now: float) -> Sequence[Wait]:
        """Return reasons why turns wait or are refused, also where none waits yet. ``now``: the store's clock."""
        return ()

    async def read_obstacle(self, now: float) -> Obstacle | None:
        """Return what keeps turns from starting; None: nothing of this capability does."""
        return None


class TroubleReporter(Protocol):
    """Tells somebody about troubles. Each method raises ``StoreUnavailable``."""

    async def begin_look(self, name: str, seconds: float) -> bool:
        """Return whether this process looks now: reports are read, and no other process looked within ``seconds``."""

    async def report(self, trouble: Trouble) -> None:
        """Report a trouble; one that was reported before is not reported again."""

"""The port of monitors: a capability's gauges, its troubles, and the turns that it holds back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from api_client.workers.reason import Obstacle, Wait


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge of /metrics: a value for each value of ``label``, or one value under an empty text without a label."""

    name: str
    meaning: str
    values: Mapping[str, float]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A trouble that an outside system should hear of. Troubles of one kind and subject are reported once.

    ``kind`` is one of ``contract.notices.KINDS``; ``page`` is the address of the page that shows more.
    """

    kind: str
    subject: str
    at: float
    page: str
    data: Mapping[str, str | int | float]


class Monitor:
    """Watches one capability. Override the methods you need. Each method raises ``StoreUnavailable``.

    ``look_seconds`` is the time between two searches for troubles.
    """

    name: str
    look_seconds = 5.0

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return the gauges, with a value for each series from the start."""
        return ()

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return the present troubles."""
        return ()

    async def find_waits(self, now: float) -> Sequence[Wait]:
        """Return reasons why turns wait or are refused, even if none waits yet. ``now`` is the store's clock."""
        return ()

    async def read_obstacle(self, now: float) -> Obstacle | None:
        """Return what keeps turns from starting; None if this capability keeps none."""
        return None


class TroubleReporter(Protocol):
    """Reports troubles. Each method raises ``StoreUnavailable`` when the store does not answer."""

    async def begin_look(self, name: str, seconds: float) -> bool:
        """Return whether this process should search now: no other process did within ``seconds``."""

    async def report(self, trouble: Trouble) -> None:
        """Report a trouble, once."""

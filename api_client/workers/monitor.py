"""The port of monitors: a capability's gauges, its troubles, and the turns that it holds back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from api_client.workers.reason import Obstacle, Wait


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge of the page ``/metrics``, with one value per value of ``label``, or a single value without a label."""

    name: str
    meaning: str
    values: Mapping[str, float]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A problem that is reported to an outside system, once per kind and subject.

    ``kind`` is one of ``contract.notices.KINDS``; ``page`` is the address of the page that shows more.
    """

    kind: str
    subject: str
    at: float
    page: str
    data: Mapping[str, str | int | float]


class Monitor:
    """Base class for monitors of one capability; subclasses override the methods that they need.

    Each method raises ``StoreUnavailable``. ``look_seconds`` is the time between two searches for troubles.
    """

    name: str
    look_seconds = 5.0

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return the gauges that this monitor adds to ``/metrics``; every series has a value from the start."""
        return ()

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return the problems that exist now."""
        return ()

    async def find_waits(self, now: float) -> Sequence[Wait]:
        """Return the reasons that keep turns waiting or refuse new ones, even if no turn waits yet.

        ``now`` is the time of the store's clock.
        """
        return ()

    async def read_obstacle(self, now: float) -> Obstacle | None:
        """Return the obstacle that keeps turns from starting, or None if this monitor has none."""
        return None


class TroubleReporter(Protocol):
    """Interface for a destination of reported troubles.

    Each method raises ``StoreUnavailable`` when the store does not answer.
    """

    async def begin_look(self, name: str, seconds: float) -> bool:
        """Return True if this process should search now because no other process has searched within ``seconds``."""

    async def report_trouble(self, trouble: Trouble) -> None:
        """Report a trouble, unless the same trouble was reported before."""

"""The port of monitors: each reports metrics and problems of one subject, and the turns that it holds back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from api_client.workers.reason import Obstacle, Wait


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric of the page ``/metrics``, with a single value or with one value per label value."""

    name: str
    meaning: str
    values: Mapping[str, float]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A problem that is reported once per kind and subject.

    ``kind`` is one of ``contract.notification.KINDS``; ``page`` is the address of the page that shows more.
    """

    kind: str
    subject: str
    at: float
    page: str
    data: Mapping[str, str | int | float]


class Monitor:
    """Base class for monitors. Each monitor measures one area of the system, such as budgets, and finds its problems.

    Methods raise ``StoreUnavailable``. ``look_seconds`` is the time between two searches for problems.
    """

    name: str
    look_seconds = 5.0
    #: The attribute of the client that the monitor is made with.
    part: str

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return this monitor's metrics for ``/metrics``, with a value for every series from the start."""
        return ()

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return the current problems that must be reported to people."""
        return ()

    async def find_waits(self, now: float) -> Sequence[Wait]:
        """Return the reasons why turns have to wait or are refused, even if no turn is waiting yet.

        ``now`` is the time of the store's clock.
        """
        return ()

    async def read_obstacle(self, now: float) -> Obstacle | None:
        """Return what currently keeps turns from starting, or None if this monitor knows no obstacle."""
        return None


class TroubleReporter(Protocol):
    """Reports problems, for example as notifications. Methods raise ``StoreUnavailable``."""

    async def claim_search(self, name: str, seconds: float) -> bool:
        """Return True if this process should search for problems now, because no other did within ``seconds``."""

    async def report_trouble(self, trouble: Trouble) -> None:
        """Report a problem, unless the same problem was reported before."""

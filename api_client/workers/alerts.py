"""Is anything stuck? What keeps turns from going on, each with what to do about it. Pure.

``turns doctor`` looks further, and sends a probe; this is what every look shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE

#: A worker that reported nothing for this long is gone; workers report every two seconds.
HEARD_SECONDS = 15.0
#: Turns that waited so long while no agent was at work are stuck: the alert HelixQueueStuck says the same.
STUCK_SECONDS = 300.0
#: What to do about a sick machine: its workers notice by themselves that it is well again.
SICK_FIX = "repair it (disk, rights, limits of processes and descriptors); its workers go on by themselves"
_START = "start `turns worker` (or `turns up`) on a machine that shares HELIX_ROOT"


@dataclass(frozen=True, slots=True)
class Alert:
    """What is wrong, and what to do."""

    message: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        """The alert as a JSON-ready mapping."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The worker processes heard of just now.

    Attributes:
        agents, judges: how many run agents, and how many judge answers.
        slots, free: agents they can run at once, and how many more they could.
        deaf: names of those that take no messages though they could.
        sick: machines that cannot carry out turns, each with why.
    """

    agents: int
    judges: int
    slots: int
    free: int
    deaf: tuple[str, ...]
    sick: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fleet as a JSON-ready mapping."""
        return asdict(self)


def fleet_of(told: Iterable[Mapping[str, Any]], now: float) -> Fleet:
    """The fleet, from what worker processes last reported (``fleet.workers``)."""
    fresh = [each for each in told if now - each["at"] < HEARD_SECONDS]
    agents = [each for each in fresh if RUN_QUEUE in each["queues"]]
    return Fleet(
        agents=len(agents),
        judges=sum(CHECK_QUEUE in each["queues"] for each in fresh),
        slots=sum(each["slots"] for each in agents),
        free=sum(each["free"] for each in agents if not each["deaf"]),
        deaf=tuple(each["name"] for each in fresh if each["deaf"]),
        sick={each["host"]: each["sick"] for each in fresh if each.get("sick")},
    )


def missing(told: Iterable[Mapping[str, Any]], now: float) -> list[Mapping[str, Any]]:
    """Workers that have gone silent, did not sign off, and were not replaced on their machine by a younger one."""
    lost: list[Mapping[str, Any]] = []
    known = sorted(told, key=lambda each: float(each["at"]))
    spare = [each for each in known if now - each["at"] < HEARD_SECONDS]
    for each in known:
        if now - each["at"] < HEARD_SECONDS:
            continue
        heirs = (
            other
            for other in spare
            if (other["host"], other["queues"]) == (each["host"], each["queues"])
            and other.get("started_at", 0.0) >= each.get("started_at", 0.0)
        )
        if heir := next(heirs, None):
            spare.remove(heir)
        else:
            lost.append(each)
    return lost


def alerts(fleet: Fleet, *, overdue: int, waited_seconds: float, working: int) -> Iterator[Alert]:
    """What is wrong.

    Args:
        fleet: the workers.
        overdue: turns that were due long ago and that nobody looked at.
        waited_seconds: how long the longest waiting turn has waited.
        working: turns that are being worked on.
    """
    if not fleet.agents:
        yield Alert("no worker is there to run agents: turns wait, and nothing is lost", _START)
    if not fleet.judges:
        yield Alert("no worker is there to judge answers: turns wait, and nothing is lost", _START)
    if fleet.deaf:
        names = ", ".join(fleet.deaf)
        yield Alert(f"takes no messages: {names}", "its supervisor starts it again; if not, do so")
    for host, why in sorted(fleet.sick.items()):
        yield Alert(f"{host} carries out no turns: {why}", SICK_FIX)
    if fleet.agents and overdue:
        message = f"{overdue} turns were due and nobody looked at them: no reaper is at work"
        yield Alert(message, "`turns doctor`, then the workers' logs")
    if fleet.agents and waited_seconds > STUCK_SECONDS and not working:
        minutes = int(waited_seconds // 60)
        yield Alert(f"turns have waited for {minutes} min and no agent is at work", "`turns doctor`")

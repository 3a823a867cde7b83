"""Is anything stuck? What keeps turns from going on, causes first, each with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.values.worker_reports import HEARD_SECONDS, WorkerReport
from api_client.contract.words.store_refusals import Refusal
from api_client.workers.waiting import Waiting

#: A turn that waits so long is stuck, if a slot is free and its queue's workers took nothing for ``STILL_SECONDS``.
STUCK_SECONDS, STILL_SECONDS = 300.0, 30.0
#: What to do about a sick machine: its workers notice by themselves that it is well again.
SICK_FIX = "repair it (disk, rights, limits of processes and descriptors); its workers go on by themselves"
START = "start `turns worker` (or `turns up`) on a machine that shares HELIX_ROOT"


@dataclass(frozen=True, slots=True)
class Alert:
    """What is wrong, and what to do. ``check`` is the finding of ``turns doctor`` that says the same."""

    check: str
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
        stalled: names of those that take no messages though they could. quiet: of those that were ordered to take none.
        sick: machines that cannot carry out turns, each with why.
        ready: queues with a free slot -> when one of their workers last took a turn, in seconds since the epoch.
    """

    agents: int
    judges: int
    slots: int
    free: int
    stalled: tuple[str, ...]
    sick: Mapping[str, str] = field(default_factory=dict)
    ready: Mapping[str, float] = field(default_factory=dict)
    quiet: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fleet as a JSON-ready mapping."""
        return asdict(self)


def fleet_of(reports: Iterable[WorkerReport], now: float) -> Fleet:
    """The fleet, from the last reports of worker processes."""
    fresh = [each for each in reports if now - each.at < HEARD_SECONDS]
    agents = [each for each in fresh if RUN_QUEUE in each.queues]
    ready: dict[str, float] = {}
    for each in fresh:
        for queue in each.queues:
            free = each.check_free if queue == CHECK_QUEUE else each.free
            if free and not each.stalled:
                ready[queue] = max(ready.get(queue, 0.0), each.took_at)
    return Fleet(
        agents=len(agents),
        judges=sum(CHECK_QUEUE in each.queues for each in fresh),
        slots=sum(each.slots for each in agents),
        free=sum(each.free for each in agents if not each.stalled),
        stalled=tuple(each.name for each in fresh if each.stalled),
        sick={each.host: each.sick for each in fresh if each.sick},
        ready=ready,
        quiet=tuple(each.name for each in agents if each.quiet),
    )


def stuck(fleet: Fleet, waiting: Iterable[Waiting], now: float) -> Iterator[Waiting]:
    """Turns that wait too long for a worker though one of their queue has a free slot and takes nothing."""
    for each in waiting:
        took = fleet.ready.get(each.queue)
        if took is not None and now - each.since > STUCK_SECONDS and now - took > STILL_SECONDS:
            yield each


def alerts(
    fleet: Fleet, *, now: float, refusal: Refusal | None, overdue: int, stuck: Sequence[Waiting]
) -> Iterator[Alert]:
    """What keeps turns from going on, causes first; what follows from a cause is not said again.

    Args:
        fleet: the workers.
        now: seconds since the epoch.
        refusal: why the store takes no writes.
        overdue: turns that were due long ago and that nobody looked at.
        stuck: the turns of ``stuck``, longest waiting first.
    """
    if refusal:  # then no worker can say that it lives, and no turn can move
        yield Alert("store", str(refusal), refusal.fix)
        return
    if not fleet.agents:
        message = "no worker is there to run agents: turns wait, and nothing is lost"
        yield Alert(f"workers {RUN_QUEUE}", message, START)
    if not fleet.judges:
        message = "no worker is there to judge answers: turns wait, and nothing is lost"
        yield Alert(f"workers {CHECK_QUEUE}", message, START)
    if fleet.stalled:
        names = ", ".join(fleet.stalled)
        yield Alert("stalled", f"takes no messages: {names}", "its supervisor starts it again; if not, do so")
    if fleet.quiet and len(fleet.quiet) == fleet.agents:
        message = "every worker that runs agents was ordered to take nothing new: turns wait, and nothing is lost"
        yield Alert("quiet", message, f"`turns workers resume {fleet.quiet[0]}`")
    for host, why in sorted(fleet.sick.items()):
        yield Alert("sick", f"{host} carries out no turns: {why}", SICK_FIX)
    if not fleet.agents:
        return
    if overdue:
        message = f"{overdue} turns were due and nobody looked at them: no reaper is at work"
        yield Alert("reaper", message, "read the workers' logs, then restart them")
    elif stuck:
        message = f"{len(stuck)} turns could run and have waited for {int((now - stuck[0].since) // 60)} min"
        fix = f"`turns show {stuck[0].turn_id}`; read the workers' logs, then restart them"
        yield Alert("waiting", f"{message}, though a slot is free", fix)

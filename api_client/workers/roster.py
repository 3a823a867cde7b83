"""The worker processes, each with what it does now and what it was last heard to be. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from api_client.contract.values.worker_reports import HEARD_SECONDS, WorkerReport, missing
from api_client.workers.waiting import Row


@dataclass(frozen=True, slots=True)
class Doing:
    """A turn that a worker holds: the task it carries out, since when (seconds since the epoch)."""

    turn_id: str
    task: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """One worker process. Times in seconds since the epoch, 0 for unknown.

    Attributes:
        name: the same in Flower, in the log, on pages and in records.
        state: ``at work``, ``idle``, ``quiet`` (takes nothing new), ``stalled`` (takes no messages though it could),
            ``sick`` (its machine cannot carry out turns), ``signed off`` (it ended in peace), ``replaced`` (silent, and
            another one took its place) or ``gone`` (silent, and nobody did).
        why: what is wrong with its machine.
        version: of helix-turns.
        slots, free: agents it can run at once, and how many more it could.
        heard_at: when it was last heard of. silent_seconds: how long it has been gone; 0 while it lives.
        doing: the turns it holds, longest first.
    """

    name: str
    host: str
    pid: int
    state: str
    why: str
    version: str
    queues: tuple[str, ...]
    slots: int
    free: int
    started_at: float
    heard_at: float
    silent_seconds: float
    doing: tuple[Doing, ...]

    def to_dict(self) -> dict[str, Any]:
        """The line as a JSON-ready mapping."""
        return asdict(self)


#: States of workers that are there no more, and that nobody misses.
_OVER = {"signed off", "replaced"}


def roster(
    reports: Sequence[WorkerReport], rows: Iterable[Row], now: float, ended: Sequence[WorkerReport] = ()
) -> list[WorkerLine]:
    """Each worker that was heard of within a day: those that are gone first, those that nobody misses last.

    Args:
        reports: the last one of each.
        rows: unfinished turns.
        now: seconds since the epoch.
        ended: the last reports of those that ended in peace and were not started again under their names.
    """
    doing: dict[str, list[Doing]] = defaultdict(list)
    for row in rows:
        if row.held:
            doing[row.worker].append(Doing(row.turn_id, row.task, row.since / 1000))
    gone = {each.name for each in missing(reports, now)}
    lines = [_line(each, sorted(doing[each.name], key=lambda one: one.since), gone, now) for each in reports]
    known = {line.name for line in lines}
    lines += [
        replace(_line(each, [], set(), now), state="signed off", free=0) for each in ended if each.name not in known
    ]
    return sorted(lines, key=lambda line: (line.state != "gone", line.state in _OVER, line.name))


def _line(each: WorkerReport, doing: list[Doing], gone: set[str], now: float) -> WorkerLine:
    silent = max(0.0, now - each.at)
    return WorkerLine(
        name=each.name,
        host=each.host,
        pid=each.pid,
        state=_state(each, doing, gone, silent),
        why=each.sick,
        version=each.version,
        queues=each.queues,
        slots=each.slots,
        free=each.free,
        started_at=each.started_at,
        heard_at=each.at,
        silent_seconds=round(silent, 1) if silent >= HEARD_SECONDS else 0.0,
        doing=tuple(doing),
    )


def _state(each: WorkerReport, doing: list[Doing], gone: set[str], silent: float) -> str:
    if silent >= HEARD_SECONDS:
        return "gone" if each.name in gone else "replaced"
    if each.sick:
        return "sick"
    if each.stalled:
        return "stalled"
    if each.quiet:
        return "quiet"
    return "at work" if doing else "idle"

"""The state of the worker processes, and alerts about what keeps turns from running."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from api_client.contract.owners import format_owner
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.turn import TurnState
from api_client.contract.worker_reports import HEARD_SECONDS, WorkerReport, missing_workers
from api_client.workers.reason import InstallationFacts, Reason, UnfinishedTurn, WaitingGroup

LONG_SECONDS = 60.0
SICK_FIX = "repair the named fault (disk, rights, limits, object store); its workers continue by themselves"
#: Free disk space that raises a warning, in bytes and as a share of the disk, and that makes turns fail, in bytes.
LITTLE, LITTLE_SHARE, NONE = 2 * 2**30, 0.05, 200 * 2**20
#: Names of checks: of the disk, and the beginning of those of settings.
DISK, SETTINGS = "disk", "settings "
START = "start `turns run worker` (or `turns up`) on a machine that shares HELIX_ROOT"


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem of an installation, with advice on how to solve it.

    ``check`` names the same finding in ``turns doctor``. ``severity`` is ``wrong``, or ``warning`` for an operator's
    choice and for temporary problems.
    """

    check: str
    message: str
    fix: str
    severity: str = "wrong"

    @property
    def keeps_turns_waiting(self) -> bool:
        return self.severity == "wrong" and self.check != DISK and not self.check.startswith(SETTINGS)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The combined state of the worker processes that reported recently.

    ``slots`` and ``free`` count agents that they can run. ``stalled`` processes consume no messages though they could.
    ``sick`` maps a machine to its fault, ``ready`` a queue with a free slot to the time when one of its workers last
    took a turn.
    """

    agents: int = 0
    validators: int = 0
    slots: int = 0
    free: int = 0
    stalled: tuple[str, ...] = ()
    sick: Mapping[str, str] = field(default_factory=dict)
    ready: Mapping[str, float] = field(default_factory=dict)
    quiet: tuple[str, ...] = ()


def make_fleet(reports: Iterable[WorkerReport], now: float) -> Fleet:
    """Summarise the recent reports of all worker processes. Old reports are ignored."""
    fresh = [each for each in reports if now - each.at < HEARD_SECONDS]
    agents = [each for each in fresh if RUN_QUEUE in each.queues]
    ready: dict[str, float] = {}
    for each in fresh:
        for queue in each.queues:
            if each.free_slots(queue) and not each.stalled:
                ready[queue] = max(ready.get(queue, 0.0), each.took_at)
    return Fleet(
        agents=len(agents),
        validators=sum(CHECK_QUEUE in each.queues for each in fresh),
        slots=sum(each.slots for each in agents),
        free=sum(each.free for each in agents if not each.stalled),
        stalled=tuple(each.name for each in fresh if each.stalled),
        sick={each.host: each.sick for each in fresh if each.sick},
        ready=ready,
        quiet=tuple(each.name for each in agents if each.quiet),
    )


def check_disk(free: int, total: int, path: str) -> Alert:
    """Return an alert about free disk space. Its severity is ``ok`` if there is enough space."""
    said = f"{free / 2**30:.1f} GiB" if free >= 2**30 else f"{free / 2**20:.0f} MiB"
    severity = "wrong" if free < NONE else "warning" if free < max(LITTLE, LITTLE_SHARE * total) else "ok"
    return Alert(
        DISK,
        f"{said} ({free / max(1, total):.0%}) free at {path}",
        "make room, or run `turns data gc --sessions DAYS`",
        severity,
    )


def find_alerts(
    fleet: Fleet,
    facts: InstallationFacts,
    *,
    overdue: int,
    waits: Sequence[WaitingGroup],
    folders: Collection[str] = (),
) -> Iterator[Alert]:
    """Yield alerts about what keeps turns from running: root causes first, and no alerts that only follow from them.

    ``overdue`` counts turns that were due long ago and that no reaper looked at. ``folders`` has the hosts whose
    workers see different session folders.
    """
    if facts.refusal:  # then no worker can report, and no turn can change
        yield Alert("store", str(facts.refusal), facts.refusal.fix)
        return
    yield from _find_worker_alerts(fleet)
    if folders:
        said = f"the workers on {', '.join(sorted(folders))} see different session folders"
        fix = "mount one shared volume as HELIX_ROOT on all of them (docs/operations.md)"
        yield Alert("sessions shared", said, fix)
    there = [each for each in facts.reports if each.version and facts.at - each.at < HEARD_SECONDS]
    if len(builds := {each.version: each.worker for each in there}) > 1:
        said = "; ".join(f"{version}, such as {name}" for version, name in sorted(builds.items()))
        fix = "let each worker be replaced; an older one leaves what it does not know to the others (docs/deploying.md)"
        yield Alert("builds", f"workers of {len(builds)} builds are at work: {said}", fix, "warning")
    if fleet.agents and overdue:
        message = f"{overdue} turns were due and nobody looked at them: no reaper is at work"
        yield Alert("reaper", message, "read the workers' logs, then restart them")
    by_reason = {(each.wait.reason, each.wait.subject): each for each in waits}
    for wait in facts.troubles:  # also a trouble behind which no turn waits yet
        group = by_reason.get((wait.reason, wait.subject))
        yield Alert(
            wait.reason.value, _describe_group(group, facts.at) if group else wait.words(), wait.advice, wait.severity
        )
    for group in waits:
        if group.wait.is_alert:
            yield Alert(
                group.wait.reason.value, _describe_group(group, facts.at), group.wait.advice, group.wait.severity
            )
        elif group.wait.reason is Reason.STUCK and fleet.agents and not overdue:
            message = f"{group.count} turns could run and have waited for {int((facts.at - group.since) // 60)} min"
            fix = f"`turns turn show {group.turn_id}`; {group.wait.advice}"
            yield Alert("waiting", f"{message}, though a slot is free", fix)
        elif group.wait.reason is Reason.SLOT and facts.at - group.since > LONG_SECONDS:
            yield Alert(Reason.SLOT.value, _describe_group(group, facts.at), group.wait.advice, "warning")


def _find_worker_alerts(fleet: Fleet) -> Iterator[Alert]:
    if not fleet.agents:
        message = "no worker for agents is running: turns wait, and nothing is lost"
        yield Alert(f"workers {RUN_QUEUE}", message, START)
    if not fleet.validators:
        message = "no worker for validation is running: turns wait, and nothing is lost"
        yield Alert(f"workers {CHECK_QUEUE}", message, START)
    if fleet.stalled:
        names = ", ".join(fleet.stalled)
        yield Alert("stalled", f"takes no messages: {names}", "its supervisor restarts it; if not, restart it yourself")
    if fleet.quiet and len(fleet.quiet) == fleet.agents:
        message = "every worker that runs agents was told to take no new turns: turns wait, and nothing is lost"
        yield Alert("quiet", message, f"`turns worker resume {fleet.quiet[0]}`")
    for host, why in sorted(fleet.sick.items()):
        yield Alert("sick", f"{host} carries out no turns: {why}", SICK_FIX)


def _describe_group(group: WaitingGroup, at: float) -> str:
    turns = "1 turn waits" if group.count == 1 else f"{group.count} turns wait"
    return f"{turns}, the longest for {max(0, int(at - group.since))} s: {group.wait.words()}"


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """A turn that a worker process is working on, with its task and start time (seconds since the epoch)."""

    turn_id: str
    task: str
    since: float


@dataclass(frozen=True, slots=True)
class KeptAgent:
    """An idle agent that a worker keeps for its session's next message. ``bytes`` is its memory use.

    ``since`` is when the agent became idle, in seconds since the epoch.
    """

    session_id: str
    since: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A row of the list of worker processes. Times are seconds since the epoch, 0 if unknown.

    Attributes:
        state: ``at work``, ``idle``, ``quiet`` (ordered to take nothing), ``stalled`` (consumes no messages though it
            could), ``sick`` (its machine cannot carry out turns), ``signed off`` (exited cleanly), ``replaced``
            (silent, and replaced by another) or ``gone`` (silent, and not replaced).
        why: fault of its machine.
        slots, free: agents that it can run at once, and how many more it could.
        silent_seconds: how long it has been gone; 0 while it lives.
        doing: turns that it holds, longest first. kept: idle agents that it keeps, longest first.
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
    doing: tuple[HeldTurn, ...]
    kept: tuple[KeptAgent, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """A row of the list of owners with unfinished turns.

    ``at_once`` is 0 without a limit. ``working`` turns are held by a worker, ``waiting`` ones wait for a worker or
    behind other turns.
    """

    name: str
    weight: int
    at_once: int
    working: int
    waiting: int


_OWNERS = 10


def list_owners(rows: Iterable[UnfinishedTurn]) -> list[OwnerRow]:
    """Return a row for each of the owners with the most unfinished turns."""
    newest, working, waiting = dict[str, UnfinishedTurn](), Counter[str](), Counter[str]()
    for each in rows:
        (working if each.held else waiting)[each.owner] += each.state is not TurnState.SUSPENDED
        if each.created_at >= (newest[each.owner].created_at if each.owner in newest else 0):
            newest[each.owner] = each
    return [
        OwnerRow(
            name=format_owner(owner, row.key),
            weight=row.weight or 1,
            at_once=row.most,
            working=working[owner],
            waiting=waiting[owner],
        )
        for owner, row in sorted(newest.items(), key=lambda each: -working[each[0]] - waiting[each[0]])[:_OWNERS]
    ]


#: States of workers that are gone and that nobody misses.
_OVER = {"signed off", "replaced"}


def list_workers(
    reports: Sequence[WorkerReport], rows: Iterable[UnfinishedTurn], now: float, ended: Sequence[WorkerReport] = ()
) -> list[WorkerRow]:
    """Return a row for each worker process of the last day: missing workers first, exited ones last.

    ``ended`` has the last reports of workers that exited cleanly; ``rows`` the unfinished turns; ``now`` is in seconds
    since the epoch.
    """
    doing: dict[str, list[HeldTurn]] = defaultdict(list)
    for row in rows:
        if row.held:
            doing[row.worker].append(HeldTurn(row.turn_id, row.task, row.since / 1000))
    gone = {each.name for each in missing_workers(reports, now)}
    lines = [_make_worker_row(each, sorted(doing[each.name], key=lambda one: one.since), gone, now) for each in reports]
    known = {line.name for line in lines}
    lines += [
        replace(_make_worker_row(each, [], set(), now), state="signed off", free=0)
        for each in ended
        if each.name not in known
    ]
    return sorted(lines, key=lambda line: (line.state != "gone", line.state in _OVER, line.name))


def _make_worker_row(each: WorkerReport, doing: list[HeldTurn], gone: set[str], now: float) -> WorkerRow:
    silent = max(0.0, now - each.at)
    return WorkerRow(
        name=each.name,
        host=each.host,
        pid=each.pid,
        state=_worker_state(each, doing, gone, silent),
        why=each.sick,
        version=each.version,
        queues=each.queues,
        slots=each.slots,
        free=each.free,
        started_at=each.started_at,
        heard_at=each.at,
        silent_seconds=round(silent, 1) if silent >= HEARD_SECONDS else 0.0,
        doing=tuple(doing),
        kept=() if silent >= HEARD_SECONDS else _read_kept_agents(each),
    )


def _read_kept_agents(each: WorkerReport) -> tuple[KeptAgent, ...]:
    found = []
    for session, facts in each.kept.items():
        with contextlib.suppress(ValueError, TypeError):  # another version wrote it
            since, size = facts
            found.append(KeptAgent(session, float(since), int(size)))
    return tuple(sorted(found, key=lambda one: one.since))


def _worker_state(each: WorkerReport, doing: list[HeldTurn], gone: set[str], silent: float) -> str:
    if silent >= HEARD_SECONDS:
        return "gone" if each.name in gone else "replaced"
    if each.sick:
        return "sick"
    if each.stalled:
        return "stalled"
    if each.quiet:
        return "quiet"
    return "at work" if doing else "idle"

"""Check the workers: running, accepting messages, free of stuck turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.worker_reports import HEARD_SECONDS, WorkerReport, missing_workers
from api_client.figures.figure_reader import TurnBalance
from api_client.workers.fleet import DISK, SETTINGS, START
from api_client.workers.installation_state import InstallationState
from api_client.workers.probe import QueueProbe
from api_client.workers.reason import Reason
from worker.cli.checks.finding import Finding, State
from worker.cli.output import count_noun
from worker.cli.store_access import run_with_settings
from worker.turns.loops.rounds import SLOW_SHARE

_PROBE_SECONDS = 5.0
#: Unfinished turns that the doctor looks at, those that are due first.
LOOK_AT_MOST = 2000
#: Seconds within which a finished turn should be sent as a trace.
_UNTRACED_SECONDS = 120.0
_SLOTS: dict[str, Callable[[WorkerReport], tuple[int, int]]] = {
    RUN_QUEUE: lambda each: (each.slots, each.free),
    CHECK_QUEUE: lambda each: (each.check_slots, each.check_free),
}


def check_workers(settings: Settings) -> Iterator[Finding]:
    """Check the workers, also with a probe message through the broker, and yield findings."""
    if not settings.store_url:
        return
    try:
        installation, probes, messages, untraced, account, unindexed = run_with_settings(settings, _read_state)
    except HelixError as error:
        yield Finding("workers", "wrong", str(error), "see the findings about the store")
        return
    reports, now = installation.reports, time.time()
    yield from report_alerts(installation)
    yield from check_presence(reports, now)
    yield from check_leases(reports, now, settings.lease_seconds)
    yield from check_shared_sessions(installation)
    yield from check_same_validators(reports)
    blamed = {alert.check for alert in installation.alerts}
    for probe in probes:
        if not blamed & {
            f"workers {probe.queue}",
            "stalled",
            "sick",
            "quiet",
        }:  # otherwise the missing workers explain the failed probe
            yield report_probe(probe)
    yield check_turns_kept(account)
    yield from check_backlog(installation, messages)
    yield from check_traces(untraced)
    yield from check_text_index(unindexed)


async def _read_state(
    client: TurnsClient,
) -> tuple[InstallationState, tuple[QueueProbe, ...], dict[str, int], int | None, TurnBalance, int]:
    installation = await client.workers.read_state(LOOK_AT_MOST)  # before the probe, which says nothing about turns
    probes = await client.prober.send_probes(_PROBE_SECONDS)
    untraced = await client.untraced.count_waiting(_UNTRACED_SECONDS)
    messages = await client.workers.count_messages()
    unindexed = await client.texts.count_unindexed()
    return installation, probes, messages, untraced, await client.figures.read_balance(), unindexed


def report_alerts(installation: InstallationState) -> Iterator[Finding]:
    """Report alerts (causes first), free slots and waiting turns in the words of the overview page."""
    for alert in installation.alerts:
        if alert.check != DISK and not alert.check.startswith(SETTINGS):  # checks of their own report these
            yield Finding(alert.check, "warning" if alert.severity == "warning" else "wrong", alert.message, alert.fix)
    blamed, fleet = {alert.check for alert in installation.alerts}, installation.fleet
    workers = {RUN_QUEUE: f"{fleet.agents} to run agents", CHECK_QUEUE: f"{fleet.validators} to validate answers"}
    for queue, who in workers.items():
        there = [each for each in installation.recent_reports if queue in each.queues]
        slots, free = (sum(counted) for counted in zip((0, 0), *map(_SLOTS[queue], there), strict=True))
        if f"workers {queue}" not in blamed:
            yield Finding(f"workers {queue}", "ok", f"{who}, {free} of {slots} slots free")
    if fleet.quiet and "quiet" not in blamed:
        said = f"told to take no new turns: {', '.join(fleet.quiet)}"
        yield Finding("quiet", "warning", said, f"`turns worker resume {fleet.quiet[0]}`")
    if not blamed & {"reaper", "waiting"}:
        longest = (
            f", the longest for {installation.at - installation.waiting_since:.0f} s" if installation.waiting else ""
        )
        seen = f" of the {LOOK_AT_MOST} that are due first" if installation.unfinished > LOOK_AT_MOST else ""
        said = f"{count_noun(len(installation.waiting), 'turn')}{seen} could run now{longest}; none is stuck"
        yield Finding("waiting", "ok", said)
    for each in installation.waits:
        reason = each.wait.reason.value
        words = each.wait.words()
        if each.wait.reason is not Reason.STUCK and not any(words in alert.message for alert in installation.alerts):
            longest = f"the longest for {max(0.0, installation.at - each.since):.0f} s"
            words = f"{count_noun(each.count, 'turn')}, {longest}: {words}"
            state: State = "ok" if each.wait.severity == "ok" else "warning"
            yield Finding(f"waits {reason}", state, words, "" if state == "ok" else each.wait.advice)


def check_presence(reports: Sequence[WorkerReport], now: float) -> Iterator[Finding]:
    """Check that all workers of the last day are still running. ``now`` is a Unix time."""
    if not reports:
        return
    lost, there = missing_workers(reports, now), sum(now - each.at < HEARD_SECONDS for each in reports)
    if not lost:
        yield Finding("workers there", "ok", f"{count_noun(there, 'worker')} there, and none is missing")
        return
    names = ", ".join(f"{each.name} (silent for {now - each.at:.0f} s)" for each in lost)
    fix = "start them again; who was taken away for good is forgotten after a day"
    said = f"{there} of {there + len(lost)} worker processes; missing: {names}"
    yield Finding("workers there", "warning", said, fix)


def check_leases(reports: Sequence[WorkerReport], now: float, lease_seconds: float) -> Iterator[Finding]:
    rounds = {each.name: each.lease_round for each in reports if now - each.at < HEARD_SECONDS}
    slow = sorted(f"{name} took {took:.1f} s" for name, took in rounds.items() if took > lease_seconds * SLOW_SHARE)
    if slow:
        fix = "fewer HELIX_RUN_SLOTS, a nearer store, or a less busy machine; from half a lease on runs are lost"
        yield Finding("leases", "warning", f"renewed too slowly: {', '.join(slow)}", fix)
    elif rounds:
        yield Finding("leases", "ok", f"renewed within {max(rounds.values()):.2f} s")


def check_shared_sessions(installation: InstallationState) -> Iterator[Finding]:
    """Report that all workers use the same session folder, unless an alert says otherwise."""
    if any(each.sessions for each in installation.reports) and "sessions shared" not in installation.why:
        yield Finding("sessions shared", "ok", "all workers see the same session folder")


def check_same_validators(reports: Sequence[WorkerReport]) -> Iterator[Finding]:
    """Check that all workers have the same validators, because each worker must be able to check any turn."""
    offers = {each.name: frozenset(each.validators) for each in reports if each.validators}
    everything = frozenset[str]().union(*offers.values())
    lacking = sorted(
        f"{name} lacks {', '.join(sorted(everything - has))}" for name, has in offers.items() if everything - has
    )
    if lacking:
        fix = "install the same packages on all of them; a turn that a worker cannot validate ends as an error"
        yield Finding("validators offered", "wrong", "; ".join(lacking), fix)
    elif offers:
        yield Finding("validators offered", "ok", "all workers offer the same validators")


def check_turns_kept(account: TurnBalance) -> Finding:
    """Check that every acknowledged turn has ended or is still in progress."""
    said = (
        f"{count_noun(account.acknowledged, 'turn')} acknowledged: {account.ended} ended, {account.going_on} unfinished"
    )
    if not account.lost:
        return Finding("turns kept", "ok", f"{said}, 0 lost")
    fix = "a record was removed, or the store lost data: compare with a backup (`turns data restore`) and its log"
    return Finding("turns kept", "wrong", f"{said}, {account.lost} lost", fix)


def report_probe(probe: QueueProbe) -> Finding:
    """Report whether a worker claimed the probe message of a queue."""
    check = f"claim {probe.queue}"
    if probe.state == "claimed":
        return Finding(check, "ok", f"{probe.worker} claimed a probe in {probe.seconds:.2f} s")
    if probe.state == "busy":
        fix = "more workers, or more HELIX_RUN_SLOTS, if turns wait too long"
        return Finding(check, "warning", "all slots are busy: a new turn waits", fix)
    return Finding(check, "wrong", f"nobody claimed a probe within {probe.seconds:.0f} s", START)


def check_backlog(installation: InstallationState, messages: dict[str, int]) -> Iterator[Finding]:
    """Report how many messages wait in the broker's queues and how many turns are dead letters."""
    waiting = ", ".join(f"{count} in {queue}" for queue, count in sorted(messages.items()))
    yield Finding(
        "queues", "ok", f"messages that no worker has taken: {waiting}; {installation.unfinished} unfinished turns"
    )
    if installation.dead:
        fix = "`turns turn dead`; then `turns turn replay --outcome dead` or `turns turn drop --all`"
        yield Finding("dead letters", "warning", f"{count_noun(installation.dead, 'turn')} killed their workers", fix)
    else:
        yield Finding("dead letters", "ok", "none")


def check_traces(untraced: int | None) -> Iterator[Finding]:
    """Report how many finished turns are waiting to be sent as traces. Report nothing if tracing was never started."""
    if untraced:
        fix = "is `turns run traces` running, and its receiver? its log says; turns themselves are not concerned"
        yield Finding("traces", "warning", f"{untraced} finished turns wait to be sent", fix)
    elif untraced is not None:
        yield Finding("traces", "ok", "all finished turns are sent")


def check_text_index(unindexed: int) -> Iterator[Finding]:
    """Report that a search for text is slow because many finished turns are not in the index."""
    if unindexed > 10_000:  # a search reads fewer within 0.2 s
        fix = "a running worker indexes them within minutes; if not, its log has `poll.failed` with `text-index`"
        yield Finding("search", "warning", f"{unindexed} finished turns are not in the index of texts", fix)

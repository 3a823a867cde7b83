"""The workers: are they there, do they take messages, does a reaper look at what is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.workers.alerts import SICK_FIX, missing
from api_client.workers.probe import QueueProbe
from worker.cli.checks.finding import Finding
from worker.cli.output import number_of
from worker.turns.leases.rounds import SLOW_SHARE

#: A worker that reported nothing for this long is gone, in seconds.
_GONE_SECONDS = 15.0
#: Turns nobody looked at for this long after they were due, in seconds.
_OVERDUE_SECONDS = 15.0
_PROBE_SECONDS = 5.0
#: Turns that ended so long ago should have been sent as traces, where they are sent, in seconds.
_UNTRACED_SECONDS = 120.0
_ROLES = {RUN_QUEUE: "run agents", CHECK_QUEUE: "judge answers"}
#: Fields of a worker's report: how many slots each kind of work has, and how many are free.
_SLOTS = {RUN_QUEUE: ("slots", "free"), CHECK_QUEUE: ("check_slots", "check_free")}
_START = "start `turns worker` (or `turns up`) on a machine that shares HELIX_ROOT"


def workers(settings: Settings) -> Iterator[Finding]:
    """Every finding about the workers. Sends a probe through the broker."""
    if not settings.store_url:
        return
    try:
        told, probes, facts, untraced = asyncio.run(_ask(settings))
    except HelixError as error:
        yield Finding("workers", "wrong", str(error), "see the findings about the store")
        return
    yield from alive(told, time.time())
    yield from everybody(told, time.time())
    yield from leases(told, time.time(), settings.lease_seconds)
    yield from shared(told)
    yield from same_validators(told)
    for probe in probes:
        yield claimed(probe)
    yield from backlog(facts)
    yield from traces(untraced)


async def _ask(
    settings: Settings,
) -> tuple[list[dict[str, Any]], tuple[QueueProbe, ...], dict[str, int], int | None]:
    async with TurnsClient(settings) as client:
        probes = await client.prober.probe(_PROBE_SECONDS)
        untraced = await client.untraced.waiting(_UNTRACED_SECONDS)
        return await client.workers(), probes, await client.backlog(_OVERDUE_SECONDS), untraced


def alive(told: list[dict[str, Any]], now: float) -> Iterator[Finding]:
    """Whether every kind of work has a worker. Pure; ``told`` is what the workers last reported."""
    fresh = [each for each in told if now - each["at"] < _GONE_SECONDS]
    for queue, does in _ROLES.items():
        there = [each for each in fresh if queue in each["queues"]]
        check = f"workers {queue}"
        deaf = [each for each in there if each["deaf"]]
        sick = {each["host"]: each["sick"] for each in there if each.get("sick")}
        if not there:
            yield Finding(check, "wrong", f"no worker is there to {does}", _START)
        elif deaf:
            names = ", ".join(each["name"] for each in deaf)
            yield Finding(check, "wrong", f"takes no message: {names}", "its supervisor restarts it; else restart it")
        elif sick:
            said = "; ".join(f"{host} carries out no turns: {why}" for host, why in sorted(sick.items()))
            yield Finding(check, "wrong", said, SICK_FIX)
        else:
            slots, free = (sum(each.get(name, 0) for each in there) for name in _SLOTS[queue])
            yield Finding(check, "ok", f"{len(there)} to {does}, {free} of {slots} slots free")


def everybody(told: list[dict[str, Any]], now: float) -> Iterator[Finding]:
    """Whether the workers that were there are still there. Pure; they are remembered for a day."""
    if not told:
        return
    lost, there = missing(told, now), sum(now - each["at"] < _GONE_SECONDS for each in told)
    if not lost:
        yield Finding("workers there", "ok", f"{number_of(there, 'worker')} there, and none is missing")
        return
    names = ", ".join(f"{each['name']} (silent for {now - each['at']:.0f} s)" for each in lost)
    fix = "start them again; who was taken away for good is forgotten after a day"
    said = f"{there} of {there + len(lost)} worker processes; missing: {names}"
    yield Finding("workers there", "warning", said, fix)


def leases(told: list[dict[str, Any]], now: float, lease_seconds: float) -> Iterator[Finding]:
    """Whether every worker renews its leases in time, long before a healthy run is taken for a lost one. Pure."""
    rounds = {each["name"]: each.get("lease_round", 0.0) for each in told if now - each["at"] < _GONE_SECONDS}
    slow = sorted(f"{name} took {took:.1f} s" for name, took in rounds.items() if took > lease_seconds * SLOW_SHARE)
    if slow:
        fix = "fewer HELIX_RUN_SLOTS, a nearer store, or a less busy machine; from half a lease on runs are lost"
        yield Finding("leases", "warning", f"renewed too slowly: {', '.join(slow)}", fix)
    elif rounds:
        yield Finding("leases", "ok", f"renewed within {max(rounds.values()):.2f} s")


def shared(told: list[dict[str, Any]]) -> Iterator[Finding]:
    """Whether all workers see the same folder of sessions. Pure."""
    folders = {each.get("sessions", "") for each in told} - {""}
    if len(folders) > 1:
        hosts = ", ".join(sorted({each["host"] for each in told}))
        fix = "mount one shared volume as HELIX_ROOT on all of them (docs/operations.md)"
        yield Finding("sessions shared", "wrong", f"the workers on {hosts} see different session folders", fix)
    elif folders:
        yield Finding("sessions shared", "ok", "all workers see the same session folder")


def same_validators(told: list[dict[str, Any]]) -> Iterator[Finding]:
    """Whether all workers offer the same validators: each must be able to judge any turn. Pure."""
    offers = {each["name"]: frozenset(each["validators"]) for each in told if "validators" in each}
    everything = frozenset[str]().union(*offers.values())
    lacking = sorted(
        f"{name} lacks {', '.join(sorted(everything - has))}" for name, has in offers.items() if everything - has
    )
    if lacking:
        fix = "install the same packages on all of them; a turn that a worker cannot judge ends as an error"
        yield Finding("validators offered", "wrong", "; ".join(lacking), fix)
    elif offers:
        yield Finding("validators offered", "ok", "all workers offer the same validators")


def claimed(probe: QueueProbe) -> Finding:
    """The result of a probe. Pure."""
    check = f"claim {probe.queue}"
    if probe.state == "claimed":
        return Finding(check, "ok", f"{probe.worker} claimed a probe in {probe.seconds:.2f} s")
    if probe.state == "busy":
        fix = "more workers, or more HELIX_RUN_SLOTS, if turns wait too long"
        return Finding(check, "warning", "every slot is at work: a new turn waits", fix)
    return Finding(check, "wrong", f"nobody claimed a probe within {probe.seconds:.0f} s", _START)


def backlog(facts: dict[str, int]) -> Iterator[Finding]:
    """Whether queues drain, what is due is looked at, and nothing lies dead. Pure."""
    waiting = f"{facts['run']} messages to run agents, {facts['check']} to judge answers"
    yield Finding("queues", "ok", f"{waiting}; {facts['unfinished']} unfinished turns")
    if facts["overdue"]:
        message = f"{facts['overdue']} turns were due and nobody looked at them: no reaper is at work"
        yield Finding("reaper", "wrong", message, _START)
    else:
        yield Finding("reaper", "ok", "nothing that is due waits for a look")
    if facts["dead"]:
        fix = "`turns dead list`; then `turns replay --outcome dead` or `turns drop --all`"
        yield Finding("dead letters", "warning", f"{number_of(facts['dead'], 'turn')} took down workers", fix)
    else:
        yield Finding("dead letters", "ok", "none")


def traces(untraced: int | None) -> Iterator[Finding]:
    """Whether finished turns are sent as traces, where that was ever begun. Pure."""
    if untraced:
        fix = "is `turns traces` running, and its receiver? its log says; turns themselves are not concerned"
        yield Finding("traces", "warning", f"{untraced} finished turns wait to be sent", fix)
    elif untraced is not None:
        yield Finding("traces", "ok", "all finished turns are sent")

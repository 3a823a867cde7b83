"""Renders counters and gauges in the format of Prometheus."""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from redis.exceptions import ResponseError

import api_client
from api_client.contract.counter_declaration import CounterDeclaration
from api_client.contract.counters import BEYOND, BOUNDS_MS, COUNTERS, parse_field
from api_client.contract.decision import LIST_COMMAND
from api_client.contract.keys import GC_AT
from api_client.contract.turn import TurnState
from api_client.web.relay.relay import Relay
from api_client.workers.installation_state import InstallationState
from api_client.workers.monitor import Gauge

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Counters stored in a smaller unit than Prometheus' convention -> metric name.
_COST_COUNTERS = {
    "cost.all": "helix_cost_usd",
    **{
        name: f"helix_{name.replace('.', '_')}_usd"
        for name in COUNTERS
        if name.startswith("cost.") and name != "cost.all"
    },
}


#: Statuses shown from the start: Prometheus misses the first increase of an unknown series.
_STATUSES = (200, 429, 500, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationVitals:
    """Measurements of the store, the disk and one relay, for the page ``/metrics``.

    ``store_bytes`` is None if the store's user may not ask; ``gc_at`` is 0 if `turns data gc` never ran.
    """

    queues: Mapping[str, int] = field(default_factory=dict)
    fair_queue_turns: Mapping[str, int] = field(default_factory=dict)
    gauges: Sequence[Gauge] = ()
    store_bytes: int | None = None
    store_limit_bytes: int | None = None
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    gc_at: float = 0.0
    streams: int = 0
    responses: Mapping[int, int] = field(default_factory=dict)


async def read_vitals(relay: Relay) -> InstallationVitals:
    """Measure the store, the disk and the relay for the page ``/metrics``. Raises ``StoreUnavailable``."""
    client = relay.client
    memory: dict[str, Any] = {}
    with suppress(ResponseError):  # the store's user may not ask
        memory = await client.store.read_memory()
    disk = await asyncio.to_thread(shutil.disk_usage, relay.settings.root)
    gc_at = await client.store.read_fact(GC_AT)
    return InstallationVitals(
        queues=await client.workers.count_messages(),
        fair_queue_turns=await client.workers.count_queued(),
        gauges=[gauge for each in client.monitors for gauge in await each.read_gauges()],
        store_bytes=memory.get("used_memory"),
        store_limit_bytes=memory.get("maxmemory"),
        disk_bytes=disk.total,
        disk_free_bytes=disk.free,
        gc_at=float(gc_at or 0),
        streams=relay.traffic.open_streams,
        responses=dict(relay.traffic.responses),
    )


def metric_name(name: str) -> str:
    """Return the Prometheus name of a counter, such as ``helix_turn_finished_total`` or ``helix_agent_seconds``."""
    if name.startswith("time."):
        return f"helix_{name.removeprefix('time.')}_seconds"
    return f"{_COST_COUNTERS.get(name, 'helix_' + name.replace('.', '_'))}_total"


class _InstallationCollector(Collector):
    def __init__(
        self, counters: Mapping[str, int], installation: InstallationState, vitals: InstallationVitals
    ) -> None:
        self._vitals = vitals
        self._values: dict[str, dict[tuple[str, ...], int]] = defaultdict(dict)
        for entry, value in counters.items():
            name, labels = parse_field(entry)
            self._values[name][labels] = value
        self._state = installation

    def collect(self) -> Iterator[Metric]:
        yield from _collect_state(self._state)
        yield from _collect_vitals(self._vitals)
        for name, entry in COUNTERS.items():
            yield self._make_histogram(name, entry) if name.startswith("time.") else self._make_counter(name, entry)

    def _make_counter(self, name: str, entry: CounterDeclaration) -> Metric:
        family = CounterMetricFamily(metric_name(name), entry.meaning, labels=entry.labels)
        factor = 1e-6 if name in _COST_COUNTERS else 1
        found = dict.fromkeys(((value,) for value in entry.always), 0) | self._values[name]
        found = found or ({} if entry.labels else {(): 0})
        for values, count in sorted(found.items()):
            family.add_metric(values, count * factor)
        return family

    def _make_histogram(self, name: str, entry: CounterDeclaration) -> Metric:
        family = HistogramMetricFamily(metric_name(name), entry.meaning, labels=entry.labels)
        counts: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        for labels, count in self._values[f"{name}.le"].items():
            counts[labels[:-1]][labels[-1]] = count
        for labels, by_bound in sorted(counts.items()):
            bounds = [str(bound) for bound in BOUNDS_MS]
            within = accumulate(by_bound.get(bound, 0) for bound in (*bounds, BEYOND))
            names = [*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf"]
            seconds = self._values[f"{name}.ms"].get(labels, 0) / 1000
            family.add_metric(labels, list(zip(names, within, strict=True)), seconds)
        return family


def _collect_state(installation: InstallationState) -> Iterator[Metric]:
    states = [state.value for state in TurnState if state is not TurnState.FINISHED]
    turns = {state: installation.states.get(state, 0) for state in states}
    yield _make_gauge("helix_turns", "Unfinished turns by state.", "state", turns)
    could = installation.waiting_by_queue
    yield _make_gauge("helix_waiting_turns", "Turns that a worker could take now.", "queue", could)
    yield _make_gauge(
        "helix_waits", "Unfinished turns that do not run, by reason.", "reason", installation.waits_by_reason
    )
    troubles = {each.check: 2 if each.severity == "wrong" else 1 for each in installation.alerts}
    yield _make_gauge(
        "helix_troubles", "Problems that the overview shows, by check; 1: a warning, 2: wrong.", "check", troubles
    )
    free = installation.free_slots
    yield _make_gauge("helix_free_slots", "Turns that workers could carry out besides.", "queue", free)
    heard = installation.recent_reports
    suspended = installation.at - installation.suspended_since if installation.suspended_since else 0.0
    stalled, sick = sum(each.stalled for each in heard), sum(bool(each.sick) for each in heard)
    lease_round = max((each.lease_round for each in heard), default=0.0)
    single = (
        ("helix_slots_needed_ratio", "Turns at work or able to run now, to all slots.", installation.slots_needed),
        ("helix_unfinished_turns", "Turns that have not ended.", installation.unfinished),
        (
            "helix_oldest_waiting_seconds",
            "Longest wait of a turn that could run now, from the moment it became due.",
            installation.at - installation.waiting_since if installation.waiting else 0.0,
        ),
        (
            "helix_oldest_suspended_seconds",
            f"Longest wait of a suspended turn for a person: {LIST_COMMAND}.",
            suspended,
        ),
        (
            "helix_stuck_turns",
            "Turns that could run and wait for five minutes though a slot is free: turns doctor.",
            installation.stuck,
        ),
        ("helix_dead_letters", "Turns that wait for an operator: turns turn dead.", installation.dead),
        ("helix_workers", "Worker processes heard of just now.", len(heard)),
        ("helix_stalled_workers", "Worker processes that live and take no messages.", stalled),
        ("helix_sick_workers", "Worker processes whose machine cannot carry out turns.", sick),
        ("helix_lease_round_seconds", "Longest renewal of a worker's leases of late.", lease_round),
        (
            "helix_loop_blocked_seconds",
            "Longest time of late that something held up all turns of a worker process.",
            max((each.loop_blocked for each in heard), default=0.0),
        ),
    )
    for name, meaning, value in single:
        yield GaugeMetricFamily(name, meaning, value=value)
    info = GaugeMetricFamily(
        "helix_build_info",
        "Version of the relay that answers, and of its Python; always 1.",
        labels=["version", "python"],
    )
    info.add_metric([api_client.__version__, platform.python_version()], 1)
    yield info


def _collect_vitals(vitals: InstallationVitals) -> Iterator[Metric]:
    yield _make_gauge("helix_queue_messages", "Celery messages that no worker took yet.", "queue", vitals.queues)
    yield _make_gauge(
        "helix_line_turns", "Turns that wait for their owner's turn to run first.", "priority", vitals.fair_queue_turns
    )
    for gauge in vitals.gauges:
        yield _make_gauge(gauge.name, gauge.meaning, gauge.label, gauge.values)
    single = (
        ("helix_store_memory_bytes", "Memory that the store uses.", vitals.store_bytes),
        ("helix_store_memory_limit_bytes", "Memory that the store may use; 0: no limit.", vitals.store_limit_bytes),
        ("helix_disk_bytes", "Size of the file system of HELIX_ROOT.", vitals.disk_bytes),
        ("helix_disk_free_bytes", "Free room on the file system of HELIX_ROOT.", vitals.disk_free_bytes),
        ("helix_gc_last_run_timestamp_seconds", "When turns data gc last ended; 0: never.", vitals.gc_at),
        ("helix_streams", "Event streams that are open at this relay.", vitals.streams),
    )
    for name, meaning, value in single:
        if value is not None:
            yield GaugeMetricFamily(name, meaning, value=value)
    answers = CounterMetricFamily(
        "helix_http_responses", "HTTP responses of this relay since its start, by status.", labels=["status"]
    )
    for status, count in sorted((dict.fromkeys(_STATUSES, 0) | dict(vitals.responses)).items()):
        answers.add_metric([str(status)], count)
    yield answers


def _make_gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=[label] if label else [])
    for value, number in sorted(values.items()):
        family.add_metric([value] if label else [], number)
    return family


def render_metrics(counters: Mapping[str, int], installation: InstallationState, vitals: InstallationVitals) -> bytes:
    """Render counters, installation state and measurements as the text of the page ``/metrics``."""
    return generate_latest(_InstallationCollector(counters, installation, vitals))

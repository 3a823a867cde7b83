"""Counters and gauges as Prometheus reads them. Pure: figures in, text out; labels are those of the counters' table.

The counters come from the store, so they survive restarts, and any relay of an installation answers the same.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

import api_client
from api_client.contract.counters import BEYOND, BOUNDS_MS, COUNTERS, Counted, parse
from api_client.contract.turn import TurnState
from api_client.web.routes.vitals import Vitals, families
from api_client.workers.gauges import Gauges

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Counters that are kept in a smaller unit than Prometheus wants: name here, factor.
_MONEY = {"cost.all": "helix_cost_usd", "cost.failed": "helix_cost_failed_usd"}


def metric_name(name: str) -> str:
    """What Prometheus calls a counter, such as ``helix_turn_finished_total`` or ``helix_agent_seconds``."""
    if name.startswith("time."):
        return f"helix_{name.removeprefix('time.')}_seconds"
    return f"{_MONEY.get(name, 'helix_' + name.replace('.', '_'))}_total"


class _Installation(Collector):
    def __init__(self, counters: Mapping[str, int], gauges: Gauges, vitals: Vitals) -> None:
        self._vitals = vitals
        self._values: dict[str, dict[tuple[str, ...], int]] = defaultdict(dict)
        for field, value in counters.items():
            name, labels = parse(field)
            self._values[name][labels] = value
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Every family, also those nothing was counted for yet."""
        yield from _gauges(self._gauges)
        yield from families(self._vitals)
        for name, entry in COUNTERS.items():
            yield self._duration(name, entry) if name.startswith("time.") else self._counter(name, entry)

    def _counter(self, name: str, entry: Counted) -> Metric:
        family = CounterMetricFamily(metric_name(name), entry.meaning, labels=entry.labels)
        factor = 1e-6 if name in _MONEY else 1
        found = dict.fromkeys(((value,) for value in entry.always), 0) | self._values[name]
        found = found or ({} if entry.labels else {(): 0})
        for values, count in sorted(found.items()):
            family.add_metric(values, count * factor)
        return family

    def _duration(self, name: str, entry: Counted) -> Metric:
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


def _gauges(gauges: Gauges) -> Iterator[Metric]:
    turns = GaugeMetricFamily("helix_turns", "Unfinished turns by state.", labels=["state"])
    for state in TurnState:
        if state is not TurnState.FINISHED:
            turns.add_metric([state.value], gauges.states.get(state.value, 0))
    yield turns
    queues = GaugeMetricFamily("helix_queue_messages", "Celery messages that no worker took yet.", labels=["queue"])
    for queue, length in sorted(gauges.queues.items()):
        queues.add_metric([queue], length)
    yield queues
    waiting = GaugeMetricFamily("helix_waiting_turns", "Turns that a worker could take now.", labels=["queue"])
    for queue, count in sorted(gauges.waiting.items()):
        waiting.add_metric([queue], count)
    yield waiting
    waits = GaugeMetricFamily("helix_waits", "Unfinished turns that do not run, by reason.", labels=["reason"])
    for reason, count in gauges.waits.items():
        waits.add_metric([reason], count)
    yield waits
    slots = GaugeMetricFamily("helix_free_slots", "Turns that workers could carry out besides.", labels=["queue"])
    for queue, free in sorted(gauges.free_slots.items()):
        slots.add_metric([queue], free)
    yield slots
    single = (
        ("helix_unfinished_turns", "Turns that have not ended.", gauges.unfinished),
        (
            "helix_oldest_waiting_seconds",
            "Longest wait of a turn that could run now, from the moment it became due.",
            gauges.oldest_waiting_seconds,
        ),
        (
            "helix_oldest_parked_seconds",
            "Longest wait of a parked turn for a person: turns inbox list.",
            gauges.oldest_parked_seconds,
        ),
        (
            "helix_stuck_turns",
            "Turns that could run and wait for five minutes though a slot is free: turns doctor.",
            gauges.stuck,
        ),
        ("helix_dead_letters", "Turns that wait for an operator: turns dead list.", gauges.dead_letters),
        ("helix_workers", "Worker processes heard of just now.", gauges.workers),
        ("helix_stalled_workers", "Worker processes that live and take no messages.", gauges.stalled_workers),
        ("helix_sick_workers", "Worker processes whose machine cannot carry out turns.", gauges.sick_workers),
        ("helix_lease_round_seconds", "Longest renewal of a worker's leases of late.", gauges.lease_round_seconds),
        (
            "helix_loop_blocked_seconds",
            "Longest time of late that something held up all turns of a worker process.",
            gauges.loop_blocked_seconds,
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


def exposition(counters: Mapping[str, int], gauges: Gauges, vitals: Vitals) -> bytes:
    """The text of ``GET /metrics``."""
    return generate_latest(_Installation(counters, gauges, vitals))

"""What /metrics shows besides counters and turns: room in store and disk, pauses, budgets, what this relay serves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from redis.exceptions import ResponseError

from api_client.budgets.budget import highest
from api_client.contract.keys import GC_AT, Keys
from api_client.notices import NoticeCounts
from api_client.pauses.pause import BREAKER, WHATS
from api_client.web.relay import Relay

#: Statuses that are shown from the start: Prometheus does not see the first increase of a series that it did not know.
_STATUSES = (200, 429, 500, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """An installation at one moment, as one relay sees it.

    Attributes:
        held: turns that a pause holds back. pauses: what is paused, by kind; ``breaker``: open breakers.
        budgets: entry of HELIX_BUDGETS -> the highest part that anybody spent of it today.
        store_bytes, store_limit_bytes: memory of the store, and its ``maxmemory`` (0: none); None: not allowed to ask.
        disk_bytes, disk_free_bytes: of the file system of HELIX_ROOT, as this relay sees it.
        gc_at: when `turns gc` last ended, in seconds since the epoch; 0: never.
        notices: calls for help that wait to be sent, and those that were given up.
        streams: event streams open at this relay. answers: HTTP status -> answers of this relay since its start.
    """

    held: int = 0
    pauses: Mapping[str, int] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    store_bytes: int | None = None
    store_limit_bytes: int | None = None
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    gc_at: float = 0.0
    notices: NoticeCounts = field(default_factory=NoticeCounts)
    streams: int = 0
    answers: Mapping[int, int] = field(default_factory=dict)


async def read_vitals(relay: Relay) -> Vitals:
    """Look at store, disk and relay.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    client = relay.client
    pauses = dict.fromkeys([*WHATS, BREAKER], 0)
    for pause in await client.pauses.in_force():
        pauses[pause.what] += 1
    memory: dict[str, Any] = {}
    with suppress(ResponseError):  # its user may not ask
        memory = await client.store.memory()
    disk = await asyncio.to_thread(shutil.disk_usage, relay.settings.root)
    gc_at = await client.store.ask(client.store.redis.hget(Keys(client.store.namespace).installation, GC_AT))
    return Vitals(
        held=await client.pauses.held(),
        pauses=pauses,
        budgets=highest(await client.spending.today()),
        store_bytes=memory.get("used_memory"),
        store_limit_bytes=memory.get("maxmemory"),
        disk_bytes=disk.total,
        disk_free_bytes=disk.free,
        gc_at=float(gc_at or 0),
        notices=await client.notices.counts(),
        streams=relay.traffic.streams,
        answers=dict(relay.traffic.answers),
    )


def families(vitals: Vitals) -> Iterator[Metric]:
    """The vitals as Prometheus reads them."""
    yield _labelled("helix_pauses", "Active pauses, and open circuit breakers, by kind.", "what", vitals.pauses)
    yield _labelled(
        "helix_budget_spent_ratio",
        "Part of today's budget that is spent, the highest of all it is measured for; 1: new turns are refused.",
        "budget",
        vitals.budgets,
    )
    single = (
        ("helix_held_turns", "Turns that a pause or an open circuit breaker holds back.", vitals.held),
        ("helix_store_memory_bytes", "Memory that the store uses.", vitals.store_bytes),
        ("helix_store_memory_limit_bytes", "Memory that the store may use; 0: no limit.", vitals.store_limit_bytes),
        ("helix_disk_bytes", "Size of the file system of HELIX_ROOT.", vitals.disk_bytes),
        ("helix_disk_free_bytes", "Free room on the file system of HELIX_ROOT.", vitals.disk_free_bytes),
        ("helix_gc_last_run_timestamp_seconds", "When turns gc last ended; 0: never.", vitals.gc_at),
        ("helix_notices_waiting", "Notices (webhooks, command) that are to be sent.", vitals.notices.waiting),
        ("helix_notices_given_up", "Notices given up after a day: turns notices dead.", vitals.notices.given_up),
        ("helix_streams", "Event streams that are open at this relay.", vitals.streams),
    )
    for name, meaning, value in single:
        if value is not None:
            yield GaugeMetricFamily(name, meaning, value=value)
    answers = CounterMetricFamily(
        "helix_http_responses", "HTTP responses of this relay since its start, by status.", labels=["status"]
    )
    for status, count in sorted((dict.fromkeys(_STATUSES, 0) | dict(vitals.answers)).items()):
        answers.add_metric([str(status)], count)
    yield answers


def _labelled(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], number)
    return family

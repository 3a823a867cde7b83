"""Measuring one side: latency, throughput, and what a turn costs in processor time and Redis commands."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import redis

from tests.bench.side import Side
from tests.bench.work import Kind

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """How much is measured in one round of one row."""

    alone: int
    together: int
    in_flight: int


@dataclass(frozen=True)
class Figures:
    """One round of one row. Names are the labels of the table; units are in them."""

    p50_ms: float
    p99_ms: float
    turns_per_s: float
    worker_cpu_ms: float
    client_cpu_ms: float
    broker_cpu_ms: float
    redis_calls: float
    redis_in_bytes: float
    aof_bytes: float

    def items(self) -> Iterable[tuple[str, float]]:
        """Label and value."""
        return asdict(self).items()


async def measure(side: Side, kind: Kind, load: Load) -> Figures:
    """One round of one row: turns one at a time, then many in flight; costs are those of the turns in flight."""
    alone = sorted([await _timed(side, kind) for _ in range(load.alone)])
    before, started = _costs(side), time.perf_counter()
    await together(side, kind, load)
    seconds = time.perf_counter() - started
    after = _costs(side)
    spent = {name: (after[name] - before[name]) / load.together for name in before}
    return Figures(
        p50_ms=_rank(alone, 0.50) * 1000,
        p99_ms=_rank(alone, 0.99) * 1000,
        turns_per_s=load.together / seconds,
        **spent,
    )


async def together(side: Side, kind: Kind, load: Load) -> None:
    """Many turns at once; also the warm-up."""
    slots = asyncio.Semaphore(load.in_flight)

    async def one() -> None:
        async with slots:
            await side.turn(kind)

    async with asyncio.TaskGroup() as group:
        for _ in range(load.together):
            group.create_task(one())


async def _timed(side: Side, kind: Kind) -> float:
    started = time.perf_counter()
    await side.turn(kind)
    return time.perf_counter() - started


def _rank(ordered: list[float], part: float) -> float:
    """The value below or at which this part of an ordered list lies (nearest rank)."""
    return ordered[max(0, round(part * len(ordered)) - 1)]


def _costs(side: Side) -> dict[str, float]:
    """What was spent so far. Calls count everything the server executed, the calls inside Lua included."""
    info = side.store.info("everything")
    calls = sum(entry["calls"] for name, entry in info.items() if name.startswith("cmdstat_"))
    return {
        "worker_cpu_ms": sum(map(cpu_ms, side.pids)),
        "client_cpu_ms": time.process_time() * 1000,
        "broker_cpu_ms": (info["used_cpu_user"] + info["used_cpu_sys"]) * 1000,
        "redis_calls": calls,
        "redis_in_bytes": info["total_net_input_bytes"],
        "aof_bytes": info["aof_current_size"],
    }


def cpu_ms(pid: int) -> float:
    """Processor time of a process and of those it started that still live, in ms (the kernel counts in 10 ms)."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    ]
    return (int(stat[11]) + int(stat[12])) * 1000 / _TICKS + sum(map(cpu_ms, children))


async def commands(side: Side, kind: Kind, turns: int) -> dict[str, Counter[str]]:
    """What ``turns`` turns, one at a time, make the server do, by MONITOR: ``sent`` by clients, and inside ``lua``."""
    seen: dict[str, Counter[str]] = {"sent": Counter(), "lua": Counter()}
    watcher = redis.Redis.from_url(side.broker.url)
    end = f"bench-end-{os.getpid()}"

    def watch(ready: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        with watcher.monitor() as monitor:  # type: ignore[no-untyped-call]
            loop.call_soon_threadsafe(ready.set)
            for command in monitor.listen():
                if end in command["command"]:
                    return
                where = "lua" if command["client_type"] == "lua" else "sent"
                seen[where][command["command"].split(" ", 1)[0].upper()] += 1

    ready = asyncio.Event()
    watching = asyncio.create_task(asyncio.to_thread(watch, ready, asyncio.get_running_loop()))
    await ready.wait()
    for _ in range(turns):
        await side.turn(kind)
    side.store.echo(end)
    await watching
    watcher.close()
    return seen

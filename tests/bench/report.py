"""What a run of the bench says: medians with their spread, and ratios taken round by round."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import redis

from tests.bench.measure import Figures
from tests.bench.work import BURST, PACED, PACED_SECONDS

Say = Callable[[str], None]

#: Ours over plain: which rows stand beside each other.
PAIRS = {"valid at once": ("plain", "ours"), "rejected once": ("plain x2", "ours x2")}
HEADS = {
    "plain": "plain run→validate",
    "ours": "ours, valid at once",
    "plain x2": "plain run→validate→run→validate",
    "ours x2": "ours, rejected once",
}
LABELS = {
    "p50_ms": "latency p50, ms, one at a time",
    "p99_ms": "latency p99, ms, one at a time",
    "turns_per_s": "turns/s, 50 in flight",
    "worker_cpu_ms": "worker CPU, ms a turn",
    "client_cpu_ms": "client CPU, ms a turn",
    "broker_cpu_ms": "broker CPU, ms a turn",
    "redis_calls": "Redis calls a turn, those inside Lua included",
    "redis_in_bytes": "bytes into Redis a turn",
    "aof_bytes": "bytes into the append-only file a turn",
}


def context(durability: str) -> dict[str, Any]:
    """Where and when this was measured."""
    packages = ("helix-turns", "celery", "kombu", "redis", "hiredis")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "durability": durability,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "load_before": os.getloadavg()[0],
    }


def server_of(store: redis.Redis) -> str:
    """The broker's own name and version."""
    info = store.info("server")
    return f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"


def result(
    where: dict[str, Any],
    rows: dict[str, list[Figures]],
    streams: dict[str, list[tuple[float, int]]],
    seen: dict[str, dict[str, Counter[str]]],
    watched: int,
) -> dict[str, Any]:
    """Everything in one JSON-ready mapping. A spread is [median, lowest, highest] over the rounds."""
    table = {
        name: {label: _spread([dict(f.items())[label] for f in rounds]) for label in LABELS}
        for name, rounds in rows.items()
    }
    ratios = {
        pair: {label: _spread(_ratios(rows[plain], rows[ours], label)) for label in LABELS}
        for pair, (plain, ours) in PAIRS.items()
    }
    speeds = {name: [BURST / seconds for seconds, _ in streams[name]] for name in ("plain", "ours")}
    return {
        **where,
        "rounds": len(rows["plain"]),
        "ratios": ratios,
        "rows": table,
        "commands": {
            name: {
                part: {word: count / watched for word, count in counts.most_common()} for part, counts in parts.items()
            }
            for name, parts in seen.items()
        },
        "stream": {
            "pieces": BURST,
            "pieces_per_s": {name: _spread(values) for name, values in speeds.items()},
            "messages": {name: _spread([count for _, count in runs]) for name, runs in streams.items()},
            "ratio": _spread([b / a for a, b in zip(speeds["plain"], speeds["ours"], strict=True)]),
        },
    }


def _ratios(plain: Sequence[Figures], ours: Sequence[Figures], label: str) -> list[float]:
    """Ours over plain, round by round; rounds in which plain used no whole tick (10 ms) of processor are left out."""
    pairs = [(dict(a.items())[label], dict(b.items())[label]) for a, b in zip(plain, ours, strict=True)]
    return [b / a for a, b in pairs if a > 0]


def _spread(values: Sequence[float]) -> list[float]:
    """Median, lowest and highest; empty when nothing could be measured."""
    return [statistics.median(values), min(values), max(values)] if values else []


def text(found: dict[str, Any]) -> str:
    """The result as Markdown tables, ratios first."""
    versions = " · ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        "",
        f"{found['date']} · durability {found['durability']} · {found['cores']} cores, load {found['load_before']:.2f} "
        f"before and {found['load_after']:.2f} after · {found['rounds']} rounds in {found['seconds']:.0f} s",
        f"Python {found['python']} · {versions} · {found['server']}",
        "",
        "Ratio ours ÷ plain, round by round: median [lowest-highest]",
        "",
        *_table(
            list(PAIRS), {LABELS[label]: [_show(found["ratios"][pair][label]) for pair in PAIRS] for label in LABELS}
        ),
        *_table(["deltas"], {"pieces/s of one stream": [_show(found["stream"]["ratio"])]}),
        "Figures: median [lowest-highest]",
        "",
        *_table(
            [HEADS[name] for name in HEADS],
            {LABELS[label]: [_show(found["rows"][name][label]) for name in HEADS] for label in LABELS}
            | {"commands sent to Redis a turn": [_sum(found, name, "sent") for name in HEADS]}
            | {"calls inside Lua a turn": [_sum(found, name, "lua") for name in HEADS]},
        ),
        *_table(
            ["plain, one message a piece", "ours, logged"],
            {
                f"pieces/s, one stream of {found['stream']['pieces']}": [
                    _show(found["stream"]["pieces_per_s"][side]) for side in ("plain", "ours")
                ],
                "messages heard": [_show(found["stream"]["messages"][side]) for side in ("plain", "ours")],
                f"messages heard, {PACED} pieces in {PACED_SECONDS:g} s": [
                    "",
                    _show(found["stream"]["messages"]["paced"]),
                ],
            },
        ),
    ]
    return "\n".join(lines)


def _sum(found: dict[str, Any], name: str, part: str) -> str:
    return f"{sum(found['commands'][name][part].values()):.1f}"


def _show(spread: Sequence[float]) -> str:
    if not spread:
        return "too short to tell"
    middle, low, high = map(_short, spread)
    return f"{middle} [{low}-{high}]"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(heads: list[str], rows: dict[str, list[str]]) -> list[str]:
    return [
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
        *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items()),
        "",
    ]

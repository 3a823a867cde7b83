"""What the figures mean for an installation: a model of a few lines, each from one measured figure."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Capacity:
    """What one row's overhead allows; agents' own time comes on top.

    Attributes:
        per_core_hour: turns an hour for each core that workers have, 3,600,000 ms ÷ worker CPU a turn.
        store_limit: turns a second at which the one store, which works with one thread, is full.
        cores_at_limit: worker cores that bring it there.
        store_bytes: memory of the store for each turn that is kept.
        aof_bytes: bytes in the append-only file for each turn, until it is rewritten.
    """

    per_core_hour: float
    store_limit: float
    cores_at_limit: float
    store_bytes: float
    aof_bytes: float


def capacity(figures: dict[str, list[float]], kind: str) -> Capacity | None:
    """The model of a row, from its medians; None where they were too small for the clock."""
    found = {name: figures.get(f"{kind}.{name}", []) for name in _NEEDED}
    if not all(found.values()) or not (found["worker_cpu_ms"][0] and found["store_cpu_ms"][0]):
        return None
    worker, store = found["worker_cpu_ms"][0], found["store_cpu_ms"][0]
    return Capacity(
        per_core_hour=3_600_000 / worker,
        store_limit=1000 / store,
        cores_at_limit=worker / store,
        store_bytes=found["memory_bytes"][0],
        aof_bytes=found["aof_bytes"][0],
    )


_NEEDED = ("worker_cpu_ms", "store_cpu_ms", "memory_bytes", "aof_bytes")


def lines(found: dict[str, Any], kind: str = "rejected") -> list[str]:
    """The model as a Markdown table, a line a row."""
    models = {row: capacity(figures, kind) for row, figures in found["rows"].items()}
    return [
        "Capacity, for turns that are rejected once (from the medians above; agents' own time comes on top)",
        "",
        "| | turns an hour and worker core | turns/s at which one store is full | with so many worker cores "
        "| store memory a kept turn, kB | append-only file a turn, kB |",
        "|---|---|---|---|---|---|",
        *(
            f"| {found['labels'][row]} | {model.per_core_hour:,.0f} | {model.store_limit:,.0f} "
            f"| {model.cores_at_limit:.1f} | {model.store_bytes / 1000:.1f} | {model.aof_bytes / 1000:.1f} |"
            for row, model in models.items()
            if model
        ),
        "",
    ]

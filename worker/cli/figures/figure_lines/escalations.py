"""The sentence of ``turns stats summary`` about turns that were handed on."""

from __future__ import annotations

from collections.abc import Iterator

from api_client.figures.statistics import Stats


def describe_figures(stats: Stats) -> Iterator[str]:
    """Yield a sentence about turns that were passed to another model or to a person, if there were any."""
    escalated = stats.others["escalated"]
    if any(escalated.values()):
        decided = ", ".join(f"{kind} {count}" for kind, count in stats.others["decided"].items() if count)
        yield (
            f"handed on: {escalated['model']} to another model, {escalated['person']} to a person; "
            f"decided: {decided or 'nothing yet'}"
        )

"""The declaration of a counter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDeclaration:
    """One counter: what it counts, and by what.

    ``always`` are values of its only label that /metrics has from the start: Prometheus does not see the first increase
    of a series that it did not know. ``values`` are all that a label may have.
    """

    meaning: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

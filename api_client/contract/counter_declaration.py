"""The declaration of a counter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDeclaration:
    """Declares a metrics counter with its meaning and its labels.

    ``always`` lists label values to show from the start, because Prometheus misses the first increase of a new series.
    """

    meaning: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

"""The declaration of a counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDeclaration:
    """Declares a metrics counter with its meaning and its labels.

    ``always`` lists label values to show from the start, because Prometheus misses the first increase of a new series.
    ``figure`` names a counter with one label in statistics, which show it by the names in ``figure_names``.
    """

    meaning: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    figure: str = ""
    figure_names: Mapping[str, str] = field(default_factory=dict)

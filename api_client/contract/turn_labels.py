"""The labels of turns, as capabilities declare them."""

from __future__ import annotations

from collections.abc import Mapping

from api_client.contract.catalogue import collect_declarations
from api_client.contract.turn_label import TurnLabel

LABELS: Mapping[str, TurnLabel] = collect_declarations("TURN_LABELS")
#: Labels that lists show and filter by, in the order of their columns.
LISTED: Mapping[str, TurnLabel] = {name: each for name, each in LABELS.items() if each.filter_help}
#: Labels of the counter ``turn.finished``.
COUNTED = tuple(name for name, each in LABELS.items() if each.counter == "turn.finished")
#: Label -> its own counter of finished turns.
OWN_COUNTERS = {name: each.counter for name, each in LABELS.items() if each.counter and name not in COUNTED}


def listed_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a turn's labels for lists. Missing labels are empty strings."""
    return {name: labels.get(name, "") for name in LISTED}

"""Catalogue entries for turns that are escalated to another model or to a person."""

from api_client.contract.counter_declaration import CounterDeclaration
from api_client.contract.decision import HANDED_ON, DecisionKind

COUNTERS = {
    "turn.escalated": CounterDeclaration(
        meaning="Turns handed on; stage 1: to another model, 2: to a person.",
        labels=("stage",),
        figure="escalated",
        figure_names={"1": "model", "2": "person"},
    ),
    "turn.decided": CounterDeclaration(
        meaning="Decisions on suspended turns: approve, edit, retry, reject.",
        labels=("kind",),
        figure="decided",
        figure_names={kind.value: kind.value for kind in DecisionKind},
    ),
}
REACTIONS = {HANDED_ON: ("escalated", "handed on")}
NOTIFICATION_KINDS = {"inbox.waiting": "A turn waits for a person's decision."}

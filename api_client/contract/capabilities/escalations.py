"""Catalogue entries for turns that are escalated to another model or to a person."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "turn.escalated": CounterDeclaration(
        meaning="Turns handed on; stage 1: to another model, 2: to a person.", labels=("stage",)
    ),
    "turn.decided": CounterDeclaration(
        meaning="Decisions on suspended turns: approve, edit, retry, reject.", labels=("kind",)
    ),
}
NOTIFICATION_KINDS = {
    "inbox.waiting": "A turn waits for a person's decision.",
}

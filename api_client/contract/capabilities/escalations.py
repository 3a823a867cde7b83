"""Turns that go to another model or wait for a person: their part of the catalogues."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "turn.escalated": CounterDeclaration(
        meaning="Turns handed on; stage 1: to another model, 2: to a person.", labels=("stage",)
    ),
    "turn.decided": CounterDeclaration(
        meaning="Decisions on suspended turns: approve, edit, retry, reject.", labels=("kind",)
    ),
}
NOTICE_KINDS = {
    "inbox.waiting": "A turn waits for a person's decision.",
}

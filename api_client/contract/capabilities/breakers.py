"""Catalogue entries for circuit breakers and for model services without credit."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "breaker.opened": CounterDeclaration(
        meaning="Circuit breakers opened by errors of a model's service.", labels=("model",)
    ),
    "breaker.closed": CounterDeclaration(meaning="Circuit breakers closed by an answer.", labels=("model",)),
}
NOTIFICATION_KINDS = {
    "breaker.opened": "A model's circuit breaker opened: its turns wait.",
    "service.no_credit": "The account at a model's service has no money left: its turns wait.",
}

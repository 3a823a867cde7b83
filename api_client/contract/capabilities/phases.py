"""Catalogue entries for phases."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "phase.judged": CounterDeclaration(meaning="Runs of phases verified, by decision.", labels=("decision",)),
}

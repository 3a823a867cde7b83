"""Catalogue entries for phases."""

from api_client.contract.counter_declaration import CounterDeclaration

TOP_COMMANDS = {"phase": ("Turns", "turns.phase:phase", "Run the phases of a phases.yaml, each verified.")}
COUNTERS = {"phase.judged": CounterDeclaration(meaning="Runs of phases verified, by decision.", labels=("decision",))}

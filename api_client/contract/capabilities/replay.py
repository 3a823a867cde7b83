"""Catalogue entries for replays and for rules in shadow mode."""

from api_client.contract.counter_declaration import CounterDeclaration
from api_client.contract.turn_label import TurnLabel

COUNTERS = {
    "shadow.judged": CounterDeclaration(
        meaning="Answers that a rule in shadow checked.", labels=("validator", "model")
    ),
    "shadow.rejected": CounterDeclaration(
        meaning="Answers that a rule in shadow would reject.", labels=("validator", "model")
    ),
}
#: Its turns name the turn that they repeat.
TURN_LABELS = {"replay_of": TurnLabel(span="helix.replay_of")}
PLUGINS = {"commands": {"policy.compare": "analysis", "policy.replay": "analysis"}, "exports": {"rejected": "analysis"}}

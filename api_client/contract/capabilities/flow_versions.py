"""Catalogue entries for policies and flow versions."""

from api_client.contract.counter_declaration import CounterDeclaration
from api_client.contract.turn_label import TurnLabel

COMMANDS = {
    "policy check": ("policy:check", "Check a policy file, and print its hash."),
    "policy show": ("policy:show", "Show the rules that a policy file gives a turn."),
    "policy diff": ("policy:diff", "Compare two policy files by their meaning."),
    "policy schema": ("policy:schema", "Write the JSON Schema of policy files."),
    "policy versions": ("figures.flow:versions", "Compare the versions of prompts and rules."),
    "policy rollback": ("figures.flow:rollback", "Stop giving turns to a version, at once."),
    "policy resume": ("figures.flow:resume", "Give a version its share of turns again."),
}
TURN_LABELS = {
    "flow": TurnLabel(
        title="version",
        filter_help="Only of this flow version.",
        setting="flow_version",
        counter="turn.finished",
        span="helix.turn.flow",
    ),
    "policy": TurnLabel(title="policy", counter="policy.finished"),
}
COUNTERS = {
    "policy.finished": CounterDeclaration(
        meaning="Turns that ended and that a policy file decided on, by the file's hash.",
        labels=("policy", "outcome", "asked_again"),
    )
}
NOTIFICATION_KINDS = {
    "flow.rolled_back": "The guard rolled a flow version back by itself: too many of its turns failed."
}
PLUGINS = {"watchers": {"flow-guard": "analysis"}}

"""Catalogue entries for policies and flow versions."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "policy.finished": CounterDeclaration(
        meaning="Turns that ended and that a policy file decided on, by the file's hash.",
        labels=("policy", "outcome", "asked_again"),
    ),
}
NOTIFICATION_KINDS = {
    "flow.rolled_back": "The guard rolled a flow version back by itself: too many of its turns failed.",
}
FAILPOINTS = {
    "policy.kept": "submit: policy and template are in the store, the turn is not",
}
PLUGINS = {
    "watchers": {"flow-guard": "analysis"},
}

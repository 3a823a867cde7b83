"""Catalogue entries for circuit breakers and for model services without credit."""

from api_client.contract.counter_declaration import CounterDeclaration
from api_client.contract.pause_events import TurnPaused, TurnResumed
from api_client.contract.word_tables import load_word_table

MONITORS = {"pauses": "api_client.pauses.pause_monitor:PauseMonitor"}
TOP_COMMANDS = {"pause": ("Operation", "", "Keep turns of a model, queue, key or owner from starting.")}
COMMANDS = {
    "pause start": ("resources.pauses:start", "Keep turns from starting: all, or those of a model, queue, key, owner."),
    "pause end": ("resources.pauses:end", "End a pause, or close a model's breaker."),
    "pause list": ("resources.pauses:list_pauses", "Show the pauses, why, and until when."),
}
WAIT_REASONS = load_word_table(__file__)
HOLD_EVENTS = {kind.KIND: kind for kind in (TurnPaused, TurnResumed)}
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

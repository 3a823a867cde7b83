"""Declare all counters: name, labels and meaning.

A counter is a field ``name|label|label`` of the metrics hashes. The Lua command that changes a turn appends its counts
to a list, which reapers add to the hashes.
"""

from __future__ import annotations

from functools import lru_cache

from api_client.contract.catalogue import collect_declarations
from api_client.contract.counter_declaration import CounterDeclaration
from api_client.contract.turn import Turn
from api_client.contract.turn_labels import COUNTED

#: Upper bounds of the buckets of a duration, in milliseconds; longer durations count as ``inf``.
BOUNDS_MS = (10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000)
BEYOND = "inf"
#: Label for no value, such as the step of a turn without an accepted answer.
NONE = "none"
OTHER = "other"

_LONGEST_LABEL = 64


#: name -> what it counts. A duration ``time.X`` is stored as ``time.X.ms`` (their sum) and ``time.X.le`` (by bucket).
COUNTERS: dict[str, CounterDeclaration] = {
    "turn.submitted": CounterDeclaration(meaning="Turns stored."),
    "turn.finished": CounterDeclaration(
        meaning="Turns that ended. asked_again: 1 when validators rejected an attempt and the agent was asked again.",
        labels=("outcome", "model", *COUNTED, "step", "asked_again"),
    ),
    "delivery.started": CounterDeclaration(meaning="Agent runs started, lost ones included."),
    "delivery.lost": CounterDeclaration(
        meaning="Leases taken from workers that died or froze, by the state of their turn.",
        labels=("during",),
        always=("running", "validating"),
    ),
    "delivery.handed_over": CounterDeclaration(meaning="Agent runs given back by workers that were asked to stop."),
    "attempt.ended": CounterDeclaration(
        meaning="Agent runs that ended: complete, incomplete, refused, error, cancelled, or transient (tried again).",
        labels=("verdict", "model"),
    ),
    "attempt.judged": CounterDeclaration(
        meaning="Complete answers validated, by decision.", labels=("decision", "model")
    ),
    "validator.judged": CounterDeclaration(meaning="Answers that a validator checked.", labels=("validator", "model")),
    "validator.rejected": CounterDeclaration(
        meaning="Answers in which a validator found errors.", labels=("validator", "decision", "model")
    ),
    "code.rejected": CounterDeclaration(
        meaning="Answers rejected with an issue of a code, maybe with others.", labels=("code", "decision")
    ),
    "validator.gave_up": CounterDeclaration(
        meaning="Turns that failed with errors of a validator left.", labels=("validator",)
    ),
    "code.gave_up": CounterDeclaration(meaning="Turns that failed with an issue of a code left.", labels=("code",)),
    "tokens.input": CounterDeclaration(meaning="Tokens read by agents, every run included.", labels=("model",)),
    "tokens.output": CounterDeclaration(meaning="Tokens written by agents, every run included.", labels=("model",)),
    "tokens.failed": CounterDeclaration(
        meaning="Tokens read and written by runs whose answer was not accepted; part of input and output tokens.",
        labels=("model",),
    ),
    "cost.all": CounterDeclaration(meaning="Cost of agent runs in US dollars, every run included.", labels=("model",)),
    "cost.failed": CounterDeclaration(
        meaning="Cost of agent runs whose answer was not accepted, in US dollars; part of helix_cost_usd_total.",
        labels=("model",),
    ),
    "time.wait": CounterDeclaration(meaning="From the submit of a turn to the first start of its agent."),
    "time.agent": CounterDeclaration(
        meaning="From start to end of an agent run; lost runs not included.", labels=("model",)
    ),
    "time.validation": CounterDeclaration(
        meaning="From the end of an agent run to the verdict, the wait for a slot included."
    ),
    "time.recovery": CounterDeclaration(meaning="From the last sign of life of a lost run to its next start."),
    "time.turn": CounterDeclaration(
        meaning="From a turn's submit to its last event, without the time for which it waited for a person or was held."
    ),
} | collect_declarations("COUNTERS")


@lru_cache(maxsize=4096)
def counter_field(name: str, *labels: str) -> str:
    """Return the Redis hash field of a counter with these labels, in the declared order.

    Raises ``KeyError`` for an unknown counter and ``ValueError`` for a wrong number of labels.
    """
    wanted = COUNTERS[name].labels
    if len(labels) != len(wanted):
        raise ValueError(f"{name} has the labels {', '.join(wanted)}")
    return "|".join((name, *map(clean_label, labels)))


def count_duration(name: str, ms: int, *labels: str) -> dict[str, int]:
    """Return the counter increments that add a duration in milliseconds to a histogram."""
    bucket = next((str(bound) for bound in BOUNDS_MS if ms <= bound), BEYOND)
    _, *given = counter_field(name, *labels).split("|")
    return {"|".join((f"{name}.ms", *given)): ms, "|".join((f"{name}.le", *given, bucket)): 1}


@lru_cache(maxsize=1024)
def clean_label(text: str) -> str:
    """Convert a text to a valid metrics label: printable, short, and without the separator ``|``."""
    clean = "".join("_" if letter == "|" or not letter.isprintable() else letter for letter in text)
    return clean[:_LONGEST_LABEL] or NONE


def read_pending(entry: bytes) -> tuple[float, dict[str, int]]:
    """Parse a stored list of increments into its time (seconds since the epoch) and the increment of each field."""
    at, *lines = entry.decode().split("\n")
    counted: dict[str, int] = {}
    for line in lines:
        name, _, by = line.rpartition("\t")
        counted[name] = counted.get(name, 0) + int(by)
    return int(at) / 1000, counted


def parse_field(field: str) -> tuple[str, tuple[str, ...]]:
    """Split a counter's Redis hash field into the counter's name and labels."""
    name, *labels = field.split("|")
    return name, tuple(labels)


def model_label(turn: Turn) -> str:
    """Return the metrics label for the model that is currently working on a turn."""
    return clean_label(turn.stage_model or turn.request.model)

"""The checker's own sums: it can tell every counter of the table from a log, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from api_client.contract.counters import BEYOND, BOUNDS_MS, COUNTERS
from tests.chaos.checker.counters import _BOUNDS, folded

USED = {"input_tokens": 10, "output_tokens": 1, "cost_usd": 0.5}
ISSUES = [{"code": "BAD", "validator": "rule", "severity": "error"}, {"code": "POOR", "severity": "warning"}]
LOG: list[tuple[str, dict[str, Any]]] = [
    ("turn.queued", {}),
    ("attempt.started", {"attempt": 1, "delivery": 1}),
    ("attempt.lost", {"attempt": 1, "during": "running", "silent_ms": 5}),
    ("attempt.started", {"attempt": 1, "delivery": 2}),
    ("attempt.lost", {"attempt": 1, "during": "shutdown", "usage": USED}),
    ("attempt.started", {"attempt": 1, "delivery": 3}),
    ("attempt.completed", {"attempt": 1, "verdict": "complete", "usage": USED}),
    ("attempt.rejected", {"attempt": 1, "issues": ISSUES}),
    ("turn.escalated", {"attempt": 1, "stage": 2}),
    ("turn.parked", {"attempt": 1}),
    ("turn.decided", {"attempt": 1, "kind": "reject"}),
    ("turn.finished", {"outcome": "failed", "step": "", "error": {"issues": ISSUES}}),
]


def told(**request: Any) -> dict[str, int]:
    record = {"model": "m", "flow": "v2", "policy": "1a", "request": json.dumps({"validators": ["rule"], **request})}
    return dict(folded(record, [{"at": 1000 * n, "kind": kind, "data": data} for n, (kind, data) in enumerate(LOG)]))


def test_every_counter_of_the_table_is_told_from_the_log_with_its_labels() -> None:
    found = {**told(), **told(phase={"id": "p"})}
    names: dict[str, int] = {}
    for field in found:
        name, *labels = field.split("|")
        bucket = name.endswith(".le")
        names[name.removesuffix(".le").removesuffix(".ms")] = len(labels) - bucket
    # Rules in shadow leave no event: the log is the same with and without them. Breakers belong to models.
    assert names == {
        name: len(counted.labels) for name, counted in COUNTERS.items() if not name.startswith(("shadow.", "breaker."))
    }
    assert _BOUNDS == BOUNDS_MS
    assert f"time.turn.le|{BEYOND}" not in found


def test_runs_that_were_given_back_are_paid_for_and_wasted() -> None:
    found = told()
    assert (found["tokens.input|m"], found["tokens.failed|m"]) == (20, 22)
    assert (found["cost.all|m"], found["cost.failed|m"]) == (1_000_000, 1_000_000)
    assert found["code.rejected|BAD|escalate"] == found["code.gave_up|BAD"] == 1

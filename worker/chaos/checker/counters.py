"""Invariant 9: every counter is what the logs add up to, in the totals and in the sum of minutes, hours and days."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from worker.chaos.checker.facts import Facts, Line, Problem, TurnFacts

#: Events that are one counter each.
_SIMPLE = {
    "turn.queued": "turn.submitted",
    "turn.finished": "turn.finished",
    "attempt.started": "delivery.started",
    "attempt.rejected": "attempt.rejected",
}
_BY_A_REAPER = {"running", "validating"}


def folded(facts: Facts) -> Counter[str]:
    """The counters as the logs tell them."""
    total: Counter[str] = Counter()
    for turn in facts.turns.values():
        for place, event in enumerate(turn.log):
            following = turn.log[place + 1]["kind"] if place + 1 < len(turn.log) else ""
            total.update(_counted(turn, event, following))
        if any(e["kind"] == "turn.retrying" and e["data"]["reason"] == "rejected" for e in turn.log):
            total["turn.retried"] += any(e["kind"] == "turn.finished" for e in turn.log)
    return total


def _counted(turn: TurnFacts, event: Line, following: str) -> Counter[str]:
    kind, data = event["kind"], event["data"]
    found = Counter({_SIMPLE[kind]: 1} if kind in _SIMPLE else {})
    if kind == "turn.finished":
        found[f"turn.outcome.{data['outcome']}"] += 1
    elif kind == "attempt.lost":
        found["delivery.lost" if data["during"] in _BY_A_REAPER else "delivery.handed_over"] += 1
    elif kind == "attempt.completed":
        found[_completed(data["verdict"], following)] += 1
    elif kind in {"attempt.accepted", "attempt.rejected"}:
        found["attempt.validated"] += 1
        for name in json.loads(turn.record["request"])["validators"]:
            found[f"validated.validator.{name}"] += 1
    if kind == "attempt.rejected":
        errors = [issue for issue in data["issues"] if issue["severity"] == "error"]
        for name in {issue["validator"] for issue in errors}:
            found[f"rejected.validator.{name}"] += 1
        for code in {issue["code"] for issue in errors}:
            found[f"rejected.code.{code}"] += 1
    found.pop("", None)
    return found


def _completed(verdict: str, following: str) -> str:
    """The counter of an agent run's end; '' for one that was called off."""
    if verdict == "error":
        return "attempt.transient" if following == "turn.retrying" else "attempt.error"
    return {"complete": "attempt.completed", "incomplete": "attempt.incomplete"}.get(verdict, "")


#: Counted by a commit whether or not the turn was called off in the same moment: the log cannot tell.
_NOT_IN_THE_LOG = {"turn.mended"}


def counters_equal(facts: Facts) -> Iterator[Problem]:
    """Every counter the logs tell of, and every counter that is stored."""
    told = folded(facts)
    for bucket in ("metrics:total", "metrics:minute", "metrics:hour", "metrics:day"):
        stored = facts.counters(bucket)
        for name in sorted((told.keys() | stored.keys()) - _NOT_IN_THE_LOG):
            if told[name] != stored.get(name, 0):
                text = f"{bucket}: {name} is {stored.get(name, 0)}, the logs say {told[name]}"
                yield Problem(9, "counters_differ", text)

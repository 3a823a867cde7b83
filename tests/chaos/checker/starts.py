"""Invariant 20: agents are started as often as attempts and faults explain, and no oftener: every start is paid for.

A turn's agent may start once for each attempt, passing error and agent that others killed, and again for each fault
of a worker, the broker or their links while the turn was there: one start, and one more for each lease that the fault
lasted. Documented besides: a poison turn's agent kills its worker and with it the runs beside it, and a machine that
stood still for a quarter of a lease may have cost a lease.
"""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.checker.facts import Facts, Problem, TurnFacts
from tests.chaos.checker.recovery import HARMLESS, RESTART_SECONDS, poison_times


def starts_explained(facts: Facts) -> Iterator[Problem]:
    """20: agent starts <= attempts + passing errors + faults (+ the documented reasons)."""
    started = Counter(line["turn"] for line in facts.by["execution"] if line["event"] == "start")
    for turn in facts.turns.values():
        if not turn.log or not started[turn.turn]:
            continue
        retried = sum(event["kind"] == "turn.retrying" and event["data"]["reason"] == "transient" for event in turn.log)
        killed = sum(e["kind"] == "attempt.lost" and e["data"]["during"] == "killed" for e in turn.log)
        allowed = turn.number("attempt") + retried + killed + _by_faults(facts, turn)
        if started[turn.turn] > allowed:
            text = f"{turn.turn}: {started[turn.turn]} agents started, {allowed} are explained"
            yield Problem(20, "starts_unexplained", text)


def _by_faults(facts: Facts, turn: TurnFacts) -> int:
    """How many starts the faults in the turn's lifetime explain."""
    lease = facts.setting("lease_seconds", 6.0)
    begin, end = (float(turn.log[place]["at"]) / 1000 for place in (0, -1))
    since = begin - lease - RESTART_SECONDS
    explained = 0
    for fault in facts.faults:
        over = fault.end or fault.begin
        if fault.kind not in HARMLESS and fault.begin <= end and over >= since:
            explained += 1 + int((over - fault.begin) / lease)
    explained += sum(since <= at <= end for at in poison_times(facts))
    stood_still = (float(line["wall"]) for line in facts.by["late"] if line["seconds"] > lease / 4)
    return explained + sum(since <= at <= end + lease for at in stood_still)

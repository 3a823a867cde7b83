"""Invariant 14: how long turns waited for another worker after theirs was killed, and that none outlived its deadline.

Judged from outside: the delivery that ran on a killed process, and the next ``attempt.started`` of its turn. Only over
faults that do not overlap: nothing else that holds up workers or the broker from one lease before to the claim.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.checker.facts import FINISHED, Facts, Fault, Problem, TurnFacts

#: Faults that hold up no turn on another worker.
HARMLESS = {"kill agent", "freeze agent", "kill relay", "freeze relay", "cut client"}
#: Faults whose victims ran agents.
_OF_WORKERS = {"kill engine", "kill worker"}
#: A killed worker is back, and its reaper awake, one lease and this many seconds later.
RESTART_SECONDS = 4.0
_LATE_SECONDS = 5.0


def recoveries(facts: Facts) -> list[tuple[str, float]]:
    """(turn, seconds from the kill to the next claim) for each turn whose delivery was killed alone."""
    found: list[tuple[str, float]] = []
    disturbing = [fault for fault in facts.faults if fault.kind not in HARMLESS]
    poison = poison_times(facts)
    settle = facts.setting("lease_seconds", 6.0) + RESTART_SECONDS
    for fault in disturbing:
        if fault.kind not in _OF_WORKERS:
            continue
        for turn in facts.turns.values():
            claimed = _claimed_after(turn, fault)
            if not claimed:
                continue
            window = (fault.begin - settle, claimed)
            if _alone(fault, disturbing, window) and not any(window[0] < at < window[1] for at in poison):
                found.append((turn.turn, claimed - fault.begin))
    return found


def poison_times(facts: Facts) -> list[float]:
    """When an agent ran that kills its worker, in seconds since the epoch."""
    poison = {turn.turn for turn in facts.turns.values() if _kind(facts, turn) == "poison"}
    return [line["at"] for line in facts.by["execution"] if line["turn"] in poison]


def _kind(facts: Facts, turn: TurnFacts) -> str:
    submit = facts.submits.get(turn.key)
    return submit.kind if submit else ""


def _claimed_after(turn: TurnFacts, fault: Fault) -> float:
    """When the turn was claimed again, if the fault killed its running delivery; else 0."""
    held = False
    for event in turn.log:
        at = float(event["at"]) / 1000
        if event["kind"] == "attempt.started":
            if held and at > fault.begin:
                return at
            held = event["data"]["worker"].partition("@")[0] in fault.workers and at < fault.begin
        elif event["kind"] in {"attempt.completed", FINISHED}:
            held = False
    return 0.0


def _alone(fault: Fault, others: list[Fault], window: tuple[float, float]) -> bool:
    return not any(
        other is not fault and other.begin < window[1] and (other.end or window[1]) > window[0] for other in others
    )


def bound(facts: Facts) -> float:
    """The longest a turn may wait for another worker, in seconds."""
    return (
        facts.setting("lease_seconds", 6.0)
        + facts.setting("reap_seconds", 1.0)
        + facts.setting("announce_seconds", 5.0)
        + 1.0
    )


def bounded_recovery(facts: Facts) -> Iterator[Problem]:
    """Recovery within the bound, and every end within the deadline."""
    for turn_id, seconds in recoveries(facts):
        if seconds > bound(facts):
            yield Problem(14, "slow_recoveries", f"{turn_id} waited {seconds:.1f} s for another worker")
    for turn in facts.turns.values():
        late = (turn.number("finished_at") - turn.number("deadline_at")) / 1000
        # A phase's time begins with its first claim: one that was called off before has no deadline.
        if turn.number("finished_at") and turn.number("deadline_at") and late > _LATE_SECONDS:
            yield Problem(14, "after_the_deadline", f"{turn.turn} ended {late:.1f} s after its deadline")
    for line in facts.by["phase"]:
        if line.get("clients_left"):
            yield Problem(14, "clients_left", f"{line['clients_left']} clients had no answer when time was up")

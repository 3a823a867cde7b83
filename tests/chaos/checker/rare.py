"""The rare events a run must have met: a run in which nothing happened proves nothing."""

from tests.chaos.checker.facts import Facts, decided_by
from tests.chaos.checker.recovery import HARMLESS
from tests.chaos.checker.suspended import suspensions, waits

#: Log lines of the processes: the only trace of what was refused.
_LOGGED = {
    "late write refused": ("turn.fenced", "lease.fenced", "events.dropped"),
    "doubled or late message refused": ("turn.refused not_next", "turn.refused held", "turn.refused finished"),
    "turn announced again by a reaper": ("turn.announced",),
    "finished run adopted": ("run.adopted",),
    "store away for a worker": ("store.away",),
}

#: What any run of a minute meets. A run that did not proves too little, whatever its verdicts.
SURE = (
    "turn announced again by a reaper",
    "lease of a running agent reaped",
    "reader resumed after an event",
    "agent asked again",
    "answer repaired by the fallback",
    "phase asked again with feedback",
    "phase handed to another model",
    "chat handed to another model",
    "suspended chat decided by a person",
    "suspended turn decided by a person",
    "suspended turn decided by its time-out",
    "turn started beside a suspended one",
)


def rare_events(facts: Facts) -> dict[str, int]:
    """How often each was met."""
    logged = facts.by["logged"][-1]["events"] if facts.by["logged"] else {}
    found = {name: sum(logged.get(event, 0) for event in events) for name, events in _LOGGED.items()}
    lost = facts.of_kind("attempt.lost")
    outcomes = [turn.record.get("outcome") for turn in facts.turns.values()]
    found |= {
        "lease of a running agent reaped": sum(event["data"]["during"] == "running" for _, event in lost),
        "lease of a judge reaped": sum(event["data"]["during"] == "validating" for _, event in lost),
        "turn handed over by its worker": sum(
            event["data"]["during"] not in {"running", "validating"} for _, event in lost
        ),
        "submit nobody knows about": sum(submit.unknown > 0 for submit in facts.submits.values()),
        "reader resumed after an event": sum(
            line["f"] == "read" and line["type"] == "invoke" and bool(line["after"])
            for lines in facts.reads.values()
            for line in lines
        ),
        "broken completion asked for again": sum(line["type"] == "info" for line in facts.by["chat"]),
        "broker away while an agent streamed": _streaming_during(facts, "broker"),
        "frozen worker woke up after its lease": _woke_late(facts),
        "agent asked again": len(facts.of_kind("turn.retrying")),
        "answer repaired by the fallback": outcomes.count("passed_by_fallback"),
        "turn cancelled": outcomes.count("cancelled"),
        "turn interrupted by the next": len(facts.of_kind("turn.stopping")),
        "poisoned turn set aside": outcomes.count("dead"),
    }
    return found | _of_phases(facts)


def _of_phases(facts: Facts) -> dict[str, int]:
    decided = [decided_by(event) for _, event in facts.of_kind("turn.decided")]
    suspended = suspensions(facts)
    consulted = [turn for turn, event in facts.of_kind("turn.escalated") if event["data"]["stage"] == 1]
    return {
        "phase asked again with feedback": sum(bool(turn.phase) for turn, _ in facts.of_kind("turn.retrying")),
        "phase handed to another model": sum(bool(turn.phase) for turn in consulted),
        "chat handed to another model": sum(not turn.phase for turn in consulted),
        "suspended chat decided by a person": sum(
            not turn.phase and decided_by(event) != "timeout" for turn, event in facts.of_kind("turn.decided")
        ),
        "verification of an attempt made again": sum(
            bool(turn.phase) and event["data"]["during"] == "validating"
            for turn, event in facts.of_kind("attempt.lost")
        ),
        "suspended turn decided by a person": sum(by != "timeout" for by in decided),
        "suspended turn decided by its time-out": sum(by == "timeout" for by in decided),
        "decision refused, another came first": len(
            {line["decision"] for line in facts.by["decide"] if line["type"] == "fail"}
        ),
        "worker killed while a turn was suspended": sum(
            span.begin < fault.begin < span.end
            for span in suspended
            for fault in facts.faults
            if fault.kind.startswith("kill") and fault.kind not in HARMLESS
        ),
        "turn started beside a suspended one": sum(
            any(span.begin < wait.end < span.end and span.turn.session != wait.turn.session for span in suspended)
            for wait in waits(facts)
        ),
    }


def _streaming_during(facts: Facts, object_: str) -> int:
    moments = [event["at"] / 1000 for _, event in facts.of_kind("attempt.output")]
    return sum(
        any(fault.begin - 1.0 < at < fault.begin for at in moments)
        for fault in facts.faults
        if fault.kind.endswith(object_)
    )


def _woke_late(facts: Facts) -> int:
    lease = facts.setting("lease_seconds", 6.0)
    return sum(fault.kind == "freeze engine" and fault.end - fault.begin > lease for fault in facts.faults)

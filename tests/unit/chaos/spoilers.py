"""Good histories spoiled by hand: one fault each, and the invariant and the figure that must notice it."""

import json
from typing import Any

from tests.unit.chaos.histories import (
    ANSWER,
    APPROVAL,
    BROKEN,
    CANCELLED,
    DECISION,
    FIRST,
    HANDED,
    OUTPUT,
    PHASE,
    SECOND,
    SUSPENDED,
    History,
    Line,
    Spoil,
    key_line,
)


def event_of(history: History, turn_id: str, kind: str, place: int = 0) -> Line:
    return [event for event in history.turns[turn_id].log if event["kind"] == kind][place]


def told(history: History, turn_id: str, kind: str, place: int = 0) -> Line:
    """What an event says."""
    return dict(event_of(history, turn_id, kind, place)["data"])


def place_of(history: History, turn_id: str, kind: str) -> int:
    """Where in a log the first event of a kind stands."""
    return next(place for place, event in enumerate(history.turns[turn_id].log) if event["kind"] == kind)


def insert(history: History, turn_id: str, before: str | int, kind: str, /, **data: Any) -> None:
    """Put an event into a log, at a place or before the first event of a kind, and number the log anew: only the event
    itself is wrong."""
    turn = history.turns[turn_id]
    place = place_of(history, turn_id, before) if isinstance(before, str) else before
    turn.log.insert(place, {**turn.log[place - 1], "kind": kind, "data": data})
    for number, event in enumerate(turn.log, 1):
        event["seq"] = number
    turn.record["seq"] = str(len(turn.log))


def unfinish(history: History, turn_id: str) -> None:
    turn = history.turns[turn_id]
    turn.log.pop()
    turn.record |= {"state": "queued", "outcome": "", "seq": str(len(turn.log))}


def later(history: History, turn_id: str, events: slice, ms: int) -> None:
    """Let these events of a turn happen so much later."""
    for event in history.turns[turn_id].log[events]:
        event["at"] += ms


def counted(history: History, name: str, more: int = 1) -> None:
    """Count so many more of these, in the totals and in every bucket alike."""
    for counters in history.counters.values():
        counters[name] = counters.get(name, 0) + more


def moved(history: History, name: str, to: str) -> None:
    """Count one of these as one of those."""
    counted(history, name, -1)
    counted(history, to)


def reader_sees_two_ends(history: History) -> None:
    line = history.find("event", kind="turn.finished")
    history.lines.append({**line, "t": line["t"] + 1, "id": "99-e2"})


def half_stored(history: History) -> None:
    unfinish(history, CANCELLED)
    history.lines.remove(history.find("submit", key="k3", type="ok"))


def asked_for_by_nobody(history: History) -> None:
    for type_ in ("invoke", "ok"):
        history.lines.remove(history.find("submit", key="k3", type=type_))


def passes_without_being_accepted(history: History) -> None:
    turn = history.turns[SECOND]
    del turn.log[-2]
    turn.log[-1]["seq"] -= 1
    turn.record["seq"] = str(len(turn.log))


def reader_never_sees_the_end(history: History) -> None:
    history.lines.remove(history.find("event", kind="turn.finished"))
    history.find("read", type="ok")["type"] = "info"


def lost_draft_is_part_of_the_answer(history: History) -> None:
    turn = history.turns[SECOND]
    turn.log[-1]["data"]["response"] = turn.record["response"] = f"Ich fange an und{ANSWER}"


def recovered_too_late_after_overlapping_faults(history: History) -> None:
    history.add(6.0, "fault", "invoke", name="fault-1", kind="freeze broker", seconds=1, pids=[9])
    history.add(7.0, "fault", name="fault-1", kind="freeze broker", seconds=1)
    later(history, SECOND, slice(4, None), 20_000)


def agents_started_without_a_fault(history: History) -> None:
    """A livelock: the lease of a healthy run is lost again and again, and each delivery is legal."""
    started = history.find("execution", turn=SECOND, event="start")
    history.lines += [{**started, "delivery": delivery} for delivery in range(2, 30)]
    history.turns[SECOND].record["delivery"] = "29"


def one_agent_too_many(history: History) -> None:
    """Two are explained: the attempt, and the kill of its worker."""
    history.lines.append({**history.find("execution", turn=SECOND, event="start"), "delivery": 3})
    history.turns[SECOND].record["delivery"] = "3"


def one_agent_too_many_beside_faults_that_explain_none(history: History) -> None:
    """A relay was killed, and a worker long before the turn was there."""
    one_agent_too_many(history)
    for name, kind, at in (("fault-1", "kill relay", 6.0), ("fault-2", "kill engine", -20.0)):
        history.add(at, "fault", "invoke", name=name, kind=kind, seconds=0, workers=["worker-7-1"])
        history.add(at, "fault", name=name, kind=kind, seconds=0)


def innocent_given_up_as_dead(history: History) -> None:
    turn = history.turns[CANCELLED]
    turn.record["outcome"] = turn.log[-1]["data"]["outcome"] = "dead"


def verified_output_missing_in_the_backup(history: History) -> None:
    history.find("backup", type="ok")["wall_began"] += 20.0
    history.find("restored")["outputs"].clear()


COMPLETE = {"verdict": "complete", "reason": ""}
GATE = {"gate": "syntax", "passed": True, "skipped": False, "issues": []}


def lose_verification(history: History, turn_id: str, judged: str) -> None:
    data = {"attempt": 2, "delivery": 2, "during": "validating", "silent_ms": 0}
    insert(history, turn_id, judged, "attempt.lost", **data)


def passed_on_a_lost_verification(history: History) -> None:
    """Its verdict was told by a worker that was lost, and the next one began anew and told none."""
    lose_verification(history, PHASE, "attempt.accepted")
    insert(history, PHASE, "attempt.accepted", "gate.checked", attempt=2, **GATE)


def rejected_without_an_error(history: History) -> None:
    for event in history.turns[SUSPENDED].log:
        if event["kind"] == "gate.checked":
            event["data"]["passed"] = True


def phase_passed_with_a_broken_file(history: History) -> None:
    line = history.find("phase_files", phase="p0")
    line["output"] = line["deliveries"][f"{PHASE}-2-2"] = {"result.json": "{"}


def edited_files_are_not_what_was_written(history: History) -> None:
    turn = history.turns[SUSPENDED]
    event_of(history, SUSPENDED, "turn.decided", -1)["data"] |= {"kind": "edit", "by": "k5@20"}
    turn.log[-1]["data"]["outcome"] = turn.record["outcome"] = "passed_by_human"
    line = history.find("phase_files", phase="p1")
    line["output"] = line["deliveries"][f"{SUSPENDED}-3-3"] = OUTPUT
    history.add(14.0, "decide", turn=SUSPENDED, decision="k5@20", kind="edit", wrote="something else")


def turn_waits_beside_a_suspended_one(history: History) -> None:
    """Nothing broke, slots were free, and it started only when nothing was suspended any more."""
    history.lines = [line for line in history.lines if line["f"] != "fault"]
    later(history, PHASE, slice(1, None), 15_000)


def decided_by_two_people(history: History) -> None:
    data = {**told(history, SUSPENDED, "turn.decided"), "by": "k5@11-rival"}
    insert(history, SUSPENDED, "turn.decided", "turn.decided", **data)
    for type_ in ("invoke", "ok"):
        history.add(8.9, "decide", type_, turn=SUSPENDED, decision="k5@11-rival", kind="retry")


def decided_by_nobody(history: History) -> None:
    history.lines = [line for line in history.lines if line["f"] != "decide"]


def another_decision_than_was_made(history: History) -> None:
    for line in history.lines:
        if line["f"] == "decide":
            line["kind"] = "approve"


def answers(history: History, text: str) -> None:
    """Let the chat that was handed on answer another text, everywhere alike."""
    event_of(history, HANDED, "turn.finished")["data"]["response"] = text
    history.turns[HANDED].record["response"] = text
    history.find("files", session="chat-c-id")["response"] = text


def edited_and_answers_as_before(history: History) -> None:
    event_of(history, HANDED, "turn.decided")["data"]["kind"] = "edit"
    for line in history.lines:
        if line["f"] == "decide" and line["decision"] == APPROVAL:
            line |= {"kind": "edit", "wrote": ANSWER}
    for counters in history.counters.values():
        counters["turn.decided|edit"] = counters.pop("turn.decided|approve")


#: The invariant and the figure that must notice -> what happened, and how a good history ``h`` is spoiled so.
BAD: dict[tuple[int, str], dict[str, Spoil]] = {
    (1, "finished_twice"): {
        "a turn ends twice": lambda h: h.turns[FIRST].tell(9.0, "turn.finished", **h.turns[FIRST].log[-1]["data"]),
        "a reader sees two ends": reader_sees_two_ends,
    },
    (2, "after_the_end"): {
        "output after the end": lambda h: h.turns[FIRST].tell(9.0, "attempt.output", attempt=2, text="noch etwas"),
        "a suspended turn is cancelled and decided": lambda h: h.turns[SUSPENDED].tell(
            15.0, "turn.decided", attempt=3, kind="approve", by=DECISION, note=""
        ),
    },
    (3, "lost"): {
        "acknowledged and gone": lambda h: h.turns.pop(CANCELLED),
        "acknowledged and never ended": lambda h: unfinish(h, SECOND),
    },
    (3, "half_stored"): {"half stored": half_stored},
    (4, "invented"): {
        "asked for by nobody": asked_for_by_nobody,
        "refused and stored": lambda h: h.find("submit", key="k3", type="ok").update(type="fail"),
    },
    (4, "doubled"): {
        "one key, two turns": lambda h: h.lines.append({**h.find("submit", key="k1", type="ok"), "turn": "turn-9"}),
    },
    (5, "illegal_steps"): {
        "passes without being accepted": passes_without_being_accepted,
        "a number of a delivery is left out": lambda h: next(
            event for event in h.turns[SECOND].log if event["data"].get("delivery") == 2
        )["data"].update(delivery=3),
        "a suspended turn is started": lambda h: insert(
            h, SUSPENDED, "turn.decided", "attempt.started", attempt=2, delivery=3, worker="worker-1-1@host"
        ),
        "decided while an agent runs": lambda h: insert(
            h, PHASE, "attempt.output", "turn.decided", attempt=1, kind="retry", by="timeout", note=""
        ),
        "approved and failed": lambda h: event_of(h, SUSPENDED, "turn.decided", -1)["data"].update(kind="approve"),
    },
    (6, "committed_twice"): {
        "judged twice": lambda h: insert(h, FIRST, 5, "attempt.accepted", attempt=1, issues=[]),
        "one token, two claims": lambda h: h.turns[FIRST].record.update(
            tokens=h.turns[FIRST].record["tokens"] + f"token-{FIRST}-1 "
        ),
    },
    (6, "executed_twice"): {
        "a delivery is executed twice": lambda h: h.lines.append(
            dict(h.find("execution", turn=FIRST, delivery=1, event="start"))
        ),
    },
    (7, "late_commits_accepted"): {
        "a fallback without a rejection": lambda h: insert(h, FIRST, 1, "turn.fallback", attempt=1, codes=[]),
        "a commit after the lease was taken": lambda h: insert(
            h,
            SECOND,
            place_of(h, SECOND, "attempt.lost") + 1,
            "attempt.completed",
            attempt=1,
            verdict="complete",
            reason="",
        ),
        "output of a late worker": lambda h: insert(
            h, SECOND, place_of(h, SECOND, "attempt.lost") + 1, "attempt.output", attempt=1, text="zu spät"
        ),
        "a verdict after the judgement": lambda h: insert(
            h, PHASE, place_of(h, PHASE, "turn.retrying") + 1, "gate.checked", attempt=1, **GATE
        ),
    },
    (7, "agents_overlap"): {"two agents of one turn at once": lambda h: h.find("alive").update(t=int(14e9))},
    (8, "order_violations"): {
        "a second turn starts before the first ends": lambda h: later(h, FIRST, slice(-2, None), 5_000),
        "the chat's first message ran last": lambda h: later(h, FIRST, slice(None), 15_000),
    },
    (9, "counters_differ"): {
        "counted twice": lambda h: h.counters["total"].update({"turn.submitted": 7}),
        "minutes disagree with the total": lambda h: h.counters["minute:60"].update({"attempt.judged|retry|m": 3}),
        "ends are counted as another outcome": lambda h: moved(
            h, "turn.finished|passed|m|v2|done|0", "turn.finished|failed|m|v2|none|0"
        ),
        "a turn is counted for another flow": lambda h: moved(
            h, "turn.finished|passed|m|v2|done|0", "turn.finished|passed|m|v3|done|0"
        ),
        "a broken run is counted as complete": lambda h: moved(
            h, "attempt.ended|cancelled|m", "attempt.ended|complete|m"
        ),
        "a rejection is counted for another validator": lambda h: moved(
            h, "validator.rejected|step_marker|retry|m", "validator.rejected|adr_structure|retry|m"
        ),
        "a rejection is counted for another code": lambda h: moved(
            h, "code.rejected|MISSING_STEP_MARKER|retry", "code.rejected|INVALID_STEP|retry"
        ),
        "a rejection is counted as given up": lambda h: moved(
            h, "validator.rejected|step_marker|retry|m", "validator.gave_up|step_marker"
        ),
        "a duration is in another bucket": lambda h: moved(h, "time.agent.le|m|1000", "time.agent.le|m|2500"),
        "a duration is a millisecond longer": lambda h: counted(h, "time.validation.ms"),
        "tokens nobody used": lambda h: counted(h, "tokens.failed|m"),
        "a lost day": lambda h: h.counters["day:86400"].clear(),
        "an escalation is not counted": lambda h: h.counters["total"].update({"turn.escalated|2": 2}),
        "a verification is not counted": lambda h: h.counters["total"].update({"phase.judged|accept": 0}),
        "a wrong gate is not counted": lambda h: event_of(h, SUSPENDED, "attempt.rejected")["data"].update(
            issues=[{**BROKEN, "code": "YAML_SYNTAX"}]
        ),
    },
    (10, "seq_gaps"): {"a reader misses an event": lambda h: h.lines.remove(h.find("event", id="2-e2"))},
    (10, "seq_duplicates"): {
        "a reader sees an event twice": lambda h: h.lines.append({**h.find("event", id="2-e2")}),
    },
    (10, "reader_differs"): {
        "a reader sees another event": lambda h: h.find("event", id="2-e2").update(sha256="0" * 16),
        "a reader never sees the end": reader_never_sees_the_end,
    },
    (11, "seq_gaps"): {"a log with a gap": lambda h: h.turns[FIRST].log.pop(2)},
    (11, "seq_duplicates"): {
        "a log with a number twice": lambda h: h.turns[FIRST].log.insert(3, dict(h.turns[FIRST].log[2])),
    },
    (11, "epochs"): {"a second epoch": lambda h: h.turns[FIRST].log[3].update(epoch="other")},
    (11, "fold_differs"): {
        "a record differs from its log": lambda h: h.turns[FIRST].record.update(outcome="failed"),
    },
    (11, "left_waiting"): {
        "still due after the end": lambda h: h.extra_keys.append(key_line("{chaos}:due", "zset", {FIRST: 1.0}, -1)),
        "still in the inbox after the end": lambda h: h.extra_keys.append(
            key_line("{chaos}:inbox", "zset", {SUSPENDED: 1.0}, -1)
        ),
    },
    (12, "client_text_differs"): {
        "a client got the rejected text": lambda h: h.find("chat", key="k1").update(text="Ohne Marker."),
        "a client of a cancelled turn got an answer": lambda h: h.find("chat", key="k3").update(
            text="Die Antwort.", error=""
        ),
    },
    (12, "answer_differs"): {
        "a lost draft is part of the answer": lost_draft_is_part_of_the_answer,
        "the stored text is not what was told": lambda h: h.turns[FIRST].attempts.update({"2:text": "etwas anderes"}),
        "approved and answers another text": lambda h: answers(h, ANSWER),
        "edited and answers as before": edited_and_answers_as_before,
    },
    (13, "wrong_files"): {
        "the mark of done names a lost delivery": lambda h: h.find("files", session="chat-a-id").update(
            done=json.dumps({"attempt_id": f"{SECOND}-1-1"})
        ),
        "the response file of an older turn": lambda h: h.find("files", session="chat-a-id").update(
            response="Eine alte Antwort."
        ),
        "a delivery nobody claimed": lambda h: h.find("files", session="chat-b-id")["deliveries"].append(
            f"{CANCELLED}-1-2"
        ),
        "approved with the mark of another attempt": lambda h: h.find("files", session="chat-c-id").update(
            done=json.dumps({"attempt_id": f"{HANDED}-1-1"})
        ),
        "approved and not published": lambda h: h.find("files", session="chat-c-id").update(response=None),
    },
    (14, "slow_recoveries"): {
        "recovered too late": lambda h: later(h, SECOND, slice(4, None), 10_000),
        "recovered too late after overlapping faults": recovered_too_late_after_overlapping_faults,
    },
    (14, "after_the_deadline"): {
        "ended after its deadline": lambda h: h.turns[FIRST].record.update(deadline_at="1"),
    },
    (14, "clients_left"): {"clients without an answer": lambda h: h.find("phase").update(clients_left=2)},
    (15, "leftovers"): {
        "a process left behind": lambda h: h.find("processes")["left"].append({"pid": 7, "command": "agent"}),
        "copies left behind": lambda h: h.find("processes").update(scratch=["helix-verify-x"]),
        "a key that never expires": lambda h: h.extra_keys.append(
            key_line("{chaos}:idempotency:x", "string", "turn-1 hash", -1)
        ),
        "somebody still listens": lambda h: h.find("server")["channels"].append(f"chaos:{{chaos}}:turn:{FIRST}:bell"),
    },
    (16, "over_budget"): {
        "too many attempts": lambda h: h.turns[CANCELLED].record.update(attempt="4"),
        "more agents than deliveries": lambda h: h.lines.append(
            {**h.find("execution", turn=FIRST, delivery=2, event="start"), "delivery": 3}
        ),
        "another model beyond its runs": lambda h: h.turns[SUSPENDED].record.update(allowed="2"),
    },
    (16, "dead_innocents"): {"an innocent is given up as dead": innocent_given_up_as_dead},
    (17, "verified_twice"): {
        "verified again with another outcome": lambda h: insert(
            h, PHASE, "verifier.started", "verifier.judged", **told(h, PHASE, "verifier.judged") | {"success": False}
        ),
        "the recorded verification differs": lambda h: h.turns[PHASE].attempts.update(
            {"2:verification": json.dumps({"success": False})}
        ),
    },
    (17, "unfounded"): {
        "passed without a verdict": lambda h: event_of(h, PHASE, "verifier.judged").update(kind="verifier.started"),
        "passed though a gate failed": lambda h: event_of(h, PHASE, "gate.checked", -1)["data"].update(passed=False),
        "passed on a lost verification": passed_on_a_lost_verification,
        # What was rejected is not sealed, so whoever comes after a loss has to find it out anew.
        "rejected on a lost verification": lambda h: lose_verification(h, PHASE, "attempt.rejected"),
        "rejected without an error": rejected_without_an_error,
    },
    (17, "wrong_output"): {
        "output of the rejected attempt": lambda h: h.find("phase_files", phase="p0").update(
            output={"result.json": "{"}
        ),
        "output of a phase that failed": lambda h: h.find("phase_files", phase="p1").update(
            output={"result.json": "{"}
        ),
        "a phase passed and published nothing": lambda h: h.find("phase_files", phase="p0").update(output={}),
        "a phase passed with a broken file": phase_passed_with_a_broken_file,
        "edited files are not what was written": edited_files_are_not_what_was_written,
        "feedback is left after success": lambda h: h.find("phase_files", phase="p0").update(feedback=True),
        "a delivery of a phase that nobody claimed": lambda h: h.find("phase_files", phase="p1")["deliveries"].update(
            {f"{SUSPENDED}-3-4": {}}
        ),
        "a phase's folder of nobody": lambda h: h.find("phase_files", phase="p1").update(directory="elsewhere"),
    },
    (18, "suspended_at_work"): {
        "the agent of a suspended turn runs": lambda h: h.add(8.5, "alive", marks=[f"{SUSPENDED}-verify.2.2"]),
    },
    (18, "blocked_by_suspended"): {"a turn waits beside a suspended one": turn_waits_beside_a_suspended_one},
    (19, "decided_twice"): {
        "a decision is applied twice": lambda h: insert(
            h, SUSPENDED, "turn.decided", "turn.decided", **told(h, SUSPENDED, "turn.decided")
        ),
        "decided by two people": decided_by_two_people,
        "a decision is refused and applied": lambda h: h.find("decide", type="ok").update(type="fail"),
    },
    (19, "decision_lost"): {
        "a decision is taken and lost": lambda h: event_of(h, SUSPENDED, "turn.decided")["data"].update(
            by="k5@11-rival"
        ),
    },
    (19, "decision_invented"): {
        "decided by nobody": decided_by_nobody,
        "another decision than was made": another_decision_than_was_made,
        "timed out before its time": lambda h: event_of(h, SUSPENDED, "turn.decided", -1).update(
            at=event_of(h, SUSPENDED, "turn.decided", -1)["at"] - 1_000
        ),
        "timed out against its default": lambda h: event_of(h, SUSPENDED, "turn.suspended", -1)["data"].update(
            interruption={"wait_seconds": 5, "silence": "approve"}
        ),
    },
    (20, "starts_unexplained"): {
        "agents started without a fault": agents_started_without_a_fault,
        "one agent too many": one_agent_too_many,
        "one agent too many beside faults that explain none": one_agent_too_many_beside_faults_that_explain_none,
    },
    (21, "missing_in_backup"): {
        "acknowledged and not in the backup": lambda h: h.find("restored")["turns"].pop(SECOND),
        "ended and not so in the backup": lambda h: h.find("restored")["turns"].update({CANCELLED: ""}),
        "a restore that fails": lambda h: h.find("restored").update(code=2, said="turns: half a backup"),
        "a verified output is missing in the backup": verified_output_missing_in_the_backup,
    },
}

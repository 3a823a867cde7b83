"""Good histories of phases, of their verification and of decisions, spoiled by hand as in ``spoilers``."""

from __future__ import annotations

import json

from tests.unit.chaos.histories import (
    ANSWER,
    APPROVAL,
    BROKEN,
    DECISION,
    HANDED,
    OUTPUT,
    PARKED,
    PHASE,
    History,
    Line,
    Spoil,
    key_line,
)
from tests.unit.chaos.spoilers import insert


def event_of(history: History, turn_id: str, kind: str, place: int = 0) -> Line:
    return [event for event in history.turns[turn_id].log if event["kind"] == kind][place]


def place_of(history: History, turn_id: str, kind: str) -> int:
    """Where in a log the first event of a kind stands."""
    return next(place for place, event in enumerate(history.turns[turn_id].log) if event["kind"] == kind)


def parked_turn_is_started(history: History) -> None:
    place = place_of(history, PARKED, "turn.decided")
    insert(history, PARKED, place, "attempt.started", attempt=2, delivery=3, worker="worker-1-1@host")


def parked_turn_is_cancelled_and_decided(history: History) -> None:
    turn = history.turns[PARKED]
    turn.tell(15.0, "turn.decided", attempt=3, kind="approve", by=DECISION, note="")


def decided_while_an_agent_runs(history: History) -> None:
    told = {"attempt": 1, "kind": "retry", "by": "timeout", "note": ""}
    insert(history, PHASE, place_of(history, PHASE, "attempt.output"), "turn.decided", **told)


def approved_and_failed(history: History) -> None:
    event_of(history, PARKED, "turn.decided", -1)["data"]["kind"] = "approve"


def verdict_after_the_judgement(history: History) -> None:
    told = {"attempt": 1, "gate": "syntax", "passed": True, "skipped": False, "issues": []}
    insert(history, PHASE, place_of(history, PHASE, "turn.retrying") + 1, "gate.checked", **told)


def still_in_the_inbox_after_the_end(history: History) -> None:
    history.extra_keys.append(key_line("{0}:inbox", "zset", {PARKED: 1.0}, -1))


def verified_again_with_another_outcome(history: History) -> None:
    told = {**event_of(history, PHASE, "verifier.judged")["data"], "success": False}
    insert(history, PHASE, place_of(history, PHASE, "verifier.started"), "verifier.judged", **told)


def recorded_verification_differs(history: History) -> None:
    history.turns[PHASE].attempts["2:verification"] = json.dumps({"success": False})


def passed_without_a_verdict(history: History) -> None:
    event_of(history, PHASE, "verifier.judged")["kind"] = "verifier.started"


def passed_though_a_gate_failed(history: History) -> None:
    event_of(history, PHASE, "gate.checked", -1)["data"]["passed"] = False


def lose_verification(history: History, turn_id: str, judged: str) -> None:
    told = {"attempt": 2, "delivery": 2, "during": "validating", "silent_ms": 0}
    insert(history, turn_id, place_of(history, turn_id, judged), "attempt.lost", **told)


def passed_on_a_lost_verification(history: History) -> None:
    """Its verdict was told by a worker that was lost, and the next one began anew and told none."""
    lose_verification(history, PHASE, "attempt.accepted")
    told = {"attempt": 2, "gate": "syntax", "passed": True, "skipped": False, "issues": []}
    insert(history, PHASE, place_of(history, PHASE, "attempt.accepted"), "gate.checked", **told)


def rejected_on_a_lost_verification(history: History) -> None:
    """What was rejected is not sealed, so whoever comes after a loss has to find it out anew."""
    lose_verification(history, PHASE, "attempt.rejected")


def rejected_without_an_error(history: History) -> None:
    for event in history.turns[PARKED].log:
        if event["kind"] == "gate.checked":
            event["data"]["passed"] = True


def output_of_the_rejected_attempt(history: History) -> None:
    history.find("phase_files", phase="p0")["output"] = {"result.json": "{"}


def output_of_a_phase_that_failed(history: History) -> None:
    history.find("phase_files", phase="p1")["output"] = {"result.json": "{"}


def phase_passed_and_published_nothing(history: History) -> None:
    history.find("phase_files", phase="p0")["output"] = {}


def phase_passed_with_a_broken_file(history: History) -> None:
    line = history.find("phase_files", phase="p0")
    line["output"] = line["deliveries"][f"{PHASE}-2-2"] = {"result.json": "{"}


def edited_files_are_not_what_was_written(history: History) -> None:
    turn = history.turns[PARKED]
    event_of(history, PARKED, "turn.decided", -1)["data"] |= {"kind": "edit", "by": "k5@20"}
    turn.log[-1]["data"]["outcome"] = turn.record["outcome"] = "passed_by_human"
    line = history.find("phase_files", phase="p1")
    line["output"] = line["deliveries"][f"{PARKED}-3-3"] = OUTPUT
    history.add(14.0, "decide", turn=PARKED, decision="k5@20", kind="edit", wrote="something else")


def feedback_left_after_success(history: History) -> None:
    history.find("phase_files", phase="p0")["feedback"] = True


def phase_delivery_nobody_claimed(history: History) -> None:
    history.find("phase_files", phase="p1")["deliveries"][f"{PARKED}-3-4"] = {}


def phase_folder_of_nobody(history: History) -> None:
    history.find("phase_files", phase="p1")["directory"] = "elsewhere"


def agent_of_a_parked_turn_runs(history: History) -> None:
    history.add(8.5, "alive", marks=[f"{PARKED}-verify.2.2"])


def turn_waits_beside_a_parked_one(history: History) -> None:
    """Nothing broke, slots were free, and it started only when nothing was parked any more."""
    history.lines = [line for line in history.lines if line["f"] != "fault"]
    for event in history.turns[PHASE].log[1:]:
        event["at"] += 15_000


def decision_applied_twice(history: History) -> None:
    told = event_of(history, PARKED, "turn.decided")["data"]
    insert(history, PARKED, place_of(history, PARKED, "turn.decided"), "turn.decided", **told)


def decided_by_two_people(history: History) -> None:
    told = {**event_of(history, PARKED, "turn.decided")["data"], "by": "k5@11-rival"}
    insert(history, PARKED, place_of(history, PARKED, "turn.decided"), "turn.decided", **told)
    for type_ in ("invoke", "ok"):
        history.add(8.9, "decide", type_, turn=PARKED, decision="k5@11-rival", kind="retry")


def decision_taken_and_lost(history: History) -> None:
    event_of(history, PARKED, "turn.decided")["data"]["by"] = "k5@11-rival"


def decision_refused_and_applied(history: History) -> None:
    history.find("decide", type="ok")["type"] = "fail"


def decided_by_nobody(history: History) -> None:
    history.lines = [line for line in history.lines if line["f"] != "decide"]


def another_decision_than_was_made(history: History) -> None:
    for line in history.lines:
        if line["f"] == "decide":
            line["kind"] = "approve"


def timed_out_before_its_time(history: History) -> None:
    event_of(history, PARKED, "turn.decided", -1)["at"] -= 1_000


def timed_out_against_its_default(history: History) -> None:
    event_of(history, PARKED, "turn.parked", -1)["data"]["default"] = "approve"


def another_model_beyond_its_runs(history: History) -> None:
    history.turns[PARKED].record["allowed"] = "2"


def escalation_not_counted(history: History) -> None:
    history.counters["total"]["turn.escalated|2"] -= 1


def verification_not_counted(history: History) -> None:
    history.counters["total"]["phase.judged|accept"] -= 1


def wrong_gate_not_counted(history: History) -> None:
    event_of(history, PARKED, "attempt.rejected")["data"]["issues"] = [{**BROKEN, "code": "YAML_SYNTAX"}]


def _answers(history: History, text: str) -> None:
    """Let the chat that was handed on answer another text, everywhere alike."""
    event_of(history, HANDED, "turn.finished")["data"]["response"] = text
    history.turns[HANDED].record["response"] = text
    history.find("files", session="chat-c-id")["response"] = text


def approved_and_answers_another_text(history: History) -> None:
    _answers(history, ANSWER)


def edited_and_answers_as_before(history: History) -> None:
    event_of(history, HANDED, "turn.decided")["data"]["kind"] = "edit"
    for line in history.lines:
        if line["f"] == "decide" and line["decision"] == APPROVAL:
            line |= {"kind": "edit", "wrote": ANSWER}
    for counters in history.counters.values():
        counters["turn.decided|edit"] = counters.pop("turn.decided|approve")


def approved_with_the_mark_of_another_attempt(history: History) -> None:
    history.find("files", session="chat-c-id")["done"] = json.dumps({"attempt_id": f"{HANDED}-1-1"})


def approved_and_not_published(history: History) -> None:
    history.find("files", session="chat-c-id")["response"] = None


#: spoiled history -> the invariant and the figure that must notice.
BAD_PHASES: list[tuple[Spoil, int, str]] = [
    (parked_turn_is_started, 5, "illegal_steps"),
    (parked_turn_is_cancelled_and_decided, 2, "after_the_end"),
    (decided_while_an_agent_runs, 5, "illegal_steps"),
    (approved_and_failed, 5, "illegal_steps"),
    (approved_and_answers_another_text, 12, "answer_differs"),
    (edited_and_answers_as_before, 12, "answer_differs"),
    (approved_with_the_mark_of_another_attempt, 13, "wrong_files"),
    (approved_and_not_published, 13, "wrong_files"),
    (verdict_after_the_judgement, 7, "late_commits_accepted"),
    (still_in_the_inbox_after_the_end, 11, "left_waiting"),
    (escalation_not_counted, 9, "counters_differ"),
    (verification_not_counted, 9, "counters_differ"),
    (wrong_gate_not_counted, 9, "counters_differ"),
    (another_model_beyond_its_runs, 16, "over_budget"),
    (verified_again_with_another_outcome, 17, "verified_twice"),
    (recorded_verification_differs, 17, "verified_twice"),
    (passed_without_a_verdict, 17, "unfounded"),
    (passed_though_a_gate_failed, 17, "unfounded"),
    (passed_on_a_lost_verification, 17, "unfounded"),
    (rejected_on_a_lost_verification, 17, "unfounded"),
    (rejected_without_an_error, 17, "unfounded"),
    (output_of_the_rejected_attempt, 17, "wrong_output"),
    (output_of_a_phase_that_failed, 17, "wrong_output"),
    (phase_passed_and_published_nothing, 17, "wrong_output"),
    (phase_passed_with_a_broken_file, 17, "wrong_output"),
    (edited_files_are_not_what_was_written, 17, "wrong_output"),
    (feedback_left_after_success, 17, "wrong_output"),
    (phase_delivery_nobody_claimed, 17, "wrong_output"),
    (phase_folder_of_nobody, 17, "wrong_output"),
    (agent_of_a_parked_turn_runs, 18, "parked_at_work"),
    (turn_waits_beside_a_parked_one, 18, "blocked_by_parked"),
    (decision_applied_twice, 19, "decided_twice"),
    (decided_by_two_people, 19, "decided_twice"),
    (decision_taken_and_lost, 19, "decision_lost"),
    (decision_refused_and_applied, 19, "decided_twice"),
    (decided_by_nobody, 19, "decision_invented"),
    (another_decision_than_was_made, 19, "decision_invented"),
    (timed_out_before_its_time, 19, "decision_invented"),
    (timed_out_against_its_default, 19, "decision_invented"),
]

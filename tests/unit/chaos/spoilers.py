"""Good histories spoiled by hand: one fault each, and the invariant that must notice it."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.chaos.histories import (
    ANSWER,
    CANCELLED,
    FIRST,
    SECOND,
    History,
    Spoil,
    key_line,
)


def insert(history: History, turn_id: str, place: int, kind: str, /, **data: Any) -> None:
    """Put an event into a log and number the log anew, so that only the event itself is wrong."""
    turn = history.turns[turn_id]
    before = turn.log[place - 1]
    turn.log.insert(place, {**before, "kind": kind, "data": data})
    for number, event in enumerate(turn.log, 1):
        event["seq"] = number
    turn.record["seq"] = str(len(turn.log))


def unfinish(history: History, turn_id: str) -> None:
    turn = history.turns[turn_id]
    turn.log.pop()
    turn.record |= {"state": "queued", "outcome": "", "seq": str(len(turn.log))}


def ends_twice(history: History) -> None:
    turn = history.turns[FIRST]
    turn.tell(9.0, "turn.finished", **turn.log[-1]["data"])


def reader_sees_two_ends(history: History) -> None:
    line = history.find("event", kind="turn.finished")
    history.lines.append({**line, "t": line["t"] + 1, "id": "99-e2"})


def output_after_the_end(history: History) -> None:
    history.turns[FIRST].tell(9.0, "attempt.output", attempt=2, text="noch etwas")


def acknowledged_and_gone(history: History) -> None:
    del history.turns[CANCELLED]


def acknowledged_and_never_ended(history: History) -> None:
    unfinish(history, SECOND)


def half_stored(history: History) -> None:
    unfinish(history, CANCELLED)
    history.lines.remove(history.find("submit", key="k3", type="ok"))


def asked_for_by_nobody(history: History) -> None:
    for type_ in ("invoke", "ok"):
        history.lines.remove(history.find("submit", key="k3", type=type_))


def one_key_two_turns(history: History) -> None:
    line = history.find("submit", key="k1", type="ok")
    history.lines.append({**line, "turn": "t0-9"})


def refused_and_stored(history: History) -> None:
    history.find("submit", key="k3", type="ok")["type"] = "fail"


def fallback_without_a_rejection(history: History) -> None:
    insert(history, FIRST, 1, "turn.fallback", attempt=1, codes=[])


def passes_without_being_accepted(history: History) -> None:
    turn = history.turns[SECOND]
    del turn.log[-2]
    turn.log[-1]["seq"] -= 1
    turn.record["seq"] = str(len(turn.log))


def delivery_number_left_out(history: History) -> None:
    next(e for e in history.turns[SECOND].log if e["data"].get("delivery") == 2)["data"]["delivery"] = 3


def judged_twice(history: History) -> None:
    insert(history, FIRST, 5, "attempt.accepted", attempt=1, issues=[])


def one_token_two_claims(history: History) -> None:
    history.turns[FIRST].record["tokens"] += f"token-{FIRST}-1 "


def delivery_executed_twice(history: History) -> None:
    history.lines.append(dict(history.find("execution", turn=FIRST, delivery=1, event="start")))


def commit_after_the_lease_was_taken(history: History) -> None:
    lost = next(p for p, e in enumerate(history.turns[SECOND].log, 1) if e["kind"] == "attempt.lost")
    insert(history, SECOND, lost, "attempt.completed", attempt=1, verdict="complete", reason="")


def output_of_a_late_worker(history: History) -> None:
    lost = next(p for p, e in enumerate(history.turns[SECOND].log, 1) if e["kind"] == "attempt.lost")
    insert(history, SECOND, lost, "attempt.output", attempt=1, text="zu spät")


def two_agents_of_one_turn_at_once(history: History) -> None:
    history.find("alive")["t"] = int(14e9)


def second_turn_starts_before_the_first_ends(history: History) -> None:
    for event in history.turns[FIRST].log[-2:]:
        event["at"] += 5_000


def turns_run_in_the_wrong_order(history: History) -> None:
    """The chat's first message ran last."""
    for event in history.turns[FIRST].log:
        event["at"] += 15_000


def counted_twice(history: History) -> None:
    history.counters["total"]["turn.submitted"] += 1


def minutes_disagree_with_the_total(history: History) -> None:
    history.counters["minute:60"]["attempt.judged|retry|m"] += 1


def moved(history: History, name: str, to: str) -> None:
    """Count one of these as one of those, in the totals and in every bucket alike."""
    for counters in history.counters.values():
        counters[name] -= 1
        counters[to] = counters.get(to, 0) + 1


def ends_counted_as_another_outcome(history: History) -> None:
    moved(history, "turn.finished|passed|m|v2|done|0", "turn.finished|failed|m|v2|none|0")


def turn_counted_for_another_flow(history: History) -> None:
    moved(history, "turn.finished|passed|m|v2|done|0", "turn.finished|passed|m|v3|done|0")


def broken_run_counted_as_complete(history: History) -> None:
    moved(history, "attempt.ended|cancelled|m", "attempt.ended|complete|m")


def rejection_counted_for_another_validator(history: History) -> None:
    moved(history, "validator.rejected|step_marker|retry|m", "validator.rejected|adr_structure|retry|m")


def rejection_counted_for_another_code(history: History) -> None:
    moved(history, "code.rejected|MISSING_STEP_MARKER|retry", "code.rejected|INVALID_STEP|retry")


def rejection_counted_as_given_up(history: History) -> None:
    moved(history, "validator.rejected|step_marker|retry|m", "validator.gave_up|step_marker")


def duration_in_another_bucket(history: History) -> None:
    moved(history, "time.agent.le|m|1000", "time.agent.le|m|2500")


def duration_a_millisecond_longer(history: History) -> None:
    for counters in history.counters.values():
        counters["time.validation.ms"] += 1


def tokens_nobody_used(history: History) -> None:
    for counters in history.counters.values():
        counters["tokens.failed|m"] = 1


def lost_day(history: History) -> None:
    history.counters["day:86400"].clear()


def reader_misses_an_event(history: History) -> None:
    history.lines.remove(history.find("event", id="2-e2"))


def reader_sees_an_event_twice(history: History) -> None:
    history.lines.append({**history.find("event", id="2-e2")})


def reader_sees_another_event(history: History) -> None:
    history.find("event", id="2-e2")["sha256"] = "0" * 16


def reader_never_sees_the_end(history: History) -> None:
    history.lines.remove(history.find("event", kind="turn.finished"))
    history.find("read", type="ok")["type"] = "info"


def log_with_a_gap(history: History) -> None:
    del history.turns[FIRST].log[2]


def log_with_a_number_twice(history: History) -> None:
    log = history.turns[FIRST].log
    log.insert(3, dict(log[2]))


def second_epoch(history: History) -> None:
    history.turns[FIRST].log[3]["epoch"] = "other"


def record_differs_from_its_log(history: History) -> None:
    history.turns[FIRST].record["outcome"] = "failed"


def still_due_after_the_end(history: History) -> None:
    history.extra_keys.append(key_line("{0}:due", "zset", {FIRST: 1.0}, -1))


def client_got_the_rejected_text(history: History) -> None:
    history.find("chat", key="k1")["text"] = "Ohne Marker."


def client_of_a_cancelled_turn_got_an_answer(history: History) -> None:
    history.find("chat", key="k3").update(text="Die Antwort.", error="")


def lost_draft_is_part_of_the_answer(history: History) -> None:
    turn = history.turns[SECOND]
    text = f"Ich fange an und{ANSWER}"
    turn.log[-1]["data"]["response"] = turn.record["response"] = text


def stored_text_is_not_what_was_told(history: History) -> None:
    history.turns[FIRST].attempts["2:text"] = "etwas anderes"


def done_names_a_lost_delivery(history: History) -> None:
    history.find("files", session="chat-a-id")["done"] = json.dumps({"attempt_id": f"{SECOND}-1-1"})


def response_file_of_an_older_turn(history: History) -> None:
    history.find("files", session="chat-a-id")["response"] = "Eine alte Antwort."


def delivery_nobody_claimed(history: History) -> None:
    history.find("files", session="chat-b-id")["deliveries"].append(f"{CANCELLED}-1-2")


def recovered_too_late(history: History) -> None:
    for event in history.turns[SECOND].log[4:]:
        event["at"] += 10_000


def recovered_too_late_after_overlapping_faults(history: History) -> None:
    history.add(6.0, "fault", "invoke", name="fault-1", kind="freeze broker", seconds=1, pids=[9])
    history.add(7.0, "fault", name="fault-1", kind="freeze broker", seconds=1)
    for event in history.turns[SECOND].log[4:]:
        event["at"] += 20_000


def ended_after_its_deadline(history: History) -> None:
    history.turns[FIRST].record["deadline_at"] = "1"


def clients_without_an_answer(history: History) -> None:
    history.find("phase")["clients_left"] = 2


def process_left_behind(history: History) -> None:
    history.find("processes")["left"].append({"pid": 7, "command": "agent"})


def copies_left_behind(history: History) -> None:
    history.find("processes")["scratch"] = ["helix-verify-x"]


def key_that_never_expires(history: History) -> None:
    history.extra_keys.append(key_line("{0}:idempotency:x", "string", "t0-1 hash", -1))


def somebody_still_listens(history: History) -> None:
    history.find("server")["channels"].append(f"chaos:{{0}}:turn:{FIRST}:bell")


def too_many_attempts(history: History) -> None:
    history.turns[CANCELLED].record["attempt"] = "4"


def agents_started_without_a_fault(history: History) -> None:
    """A livelock: the lease of a healthy run is lost again and again, and each delivery is legal."""
    started = history.find("execution", turn=SECOND, event="start")
    for delivery in range(2, 30):
        history.lines.append({**started, "delivery": delivery})
    history.turns[SECOND].record["delivery"] = "29"


def one_agent_too_many(history: History) -> None:
    """Two are explained: the attempt, and the kill of its worker."""
    started = history.find("execution", turn=SECOND, event="start")
    history.lines.append({**started, "delivery": 3})
    history.turns[SECOND].record["delivery"] = "3"


def one_agent_too_many_beside_faults_that_explain_none(history: History) -> None:
    """A relay was killed, and a worker long before the turn was there."""
    one_agent_too_many(history)
    for name, kind, at in (("fault-1", "kill relay", 6.0), ("fault-2", "kill engine", -20.0)):
        history.add(at, "fault", "invoke", name=name, kind=kind, seconds=0, workers=["worker-7-1"])
        history.add(at, "fault", name=name, kind=kind, seconds=0)


def more_agents_than_deliveries(history: History) -> None:
    line = history.find("execution", turn=FIRST, delivery=2, event="start")
    history.lines.append({**line, "delivery": 3})


def innocent_given_up_as_dead(history: History) -> None:
    turn = history.turns[CANCELLED]
    turn.record["outcome"] = turn.log[-1]["data"]["outcome"] = "dead"


def acknowledged_and_not_in_the_backup(history: History) -> None:
    del history.find("restored")["turns"][SECOND]


def ended_and_not_so_in_the_backup(history: History) -> None:
    history.find("restored")["turns"][CANCELLED] = ""


def restore_that_fails(history: History) -> None:
    history.find("restored").update(code=2, said="turns: half a backup")


def verified_output_missing_in_the_backup(history: History) -> None:
    history.find("backup", type="ok")["wall_began"] += 20.0
    history.find("restored")["outputs"].clear()


#: spoiled history -> the invariant and the figure that must notice.
BAD: list[tuple[Spoil, int, str]] = [
    (ends_twice, 1, "finished_twice"),
    (reader_sees_two_ends, 1, "finished_twice"),
    (output_after_the_end, 2, "after_the_end"),
    (acknowledged_and_gone, 3, "lost"),
    (acknowledged_and_never_ended, 3, "lost"),
    (half_stored, 3, "half_stored"),
    (asked_for_by_nobody, 4, "invented"),
    (one_key_two_turns, 4, "doubled"),
    (refused_and_stored, 4, "invented"),
    (passes_without_being_accepted, 5, "illegal_steps"),
    (delivery_number_left_out, 5, "illegal_steps"),
    (judged_twice, 6, "committed_twice"),
    (one_token_two_claims, 6, "committed_twice"),
    (delivery_executed_twice, 6, "executed_twice"),
    (fallback_without_a_rejection, 7, "late_commits_accepted"),
    (commit_after_the_lease_was_taken, 7, "late_commits_accepted"),
    (output_of_a_late_worker, 7, "late_commits_accepted"),
    (two_agents_of_one_turn_at_once, 7, "agents_overlap"),
    (second_turn_starts_before_the_first_ends, 8, "order_violations"),
    (turns_run_in_the_wrong_order, 8, "order_violations"),
    (counted_twice, 9, "counters_differ"),
    (minutes_disagree_with_the_total, 9, "counters_differ"),
    (ends_counted_as_another_outcome, 9, "counters_differ"),
    (turn_counted_for_another_flow, 9, "counters_differ"),
    (broken_run_counted_as_complete, 9, "counters_differ"),
    (rejection_counted_for_another_validator, 9, "counters_differ"),
    (rejection_counted_for_another_code, 9, "counters_differ"),
    (rejection_counted_as_given_up, 9, "counters_differ"),
    (duration_in_another_bucket, 9, "counters_differ"),
    (duration_a_millisecond_longer, 9, "counters_differ"),
    (tokens_nobody_used, 9, "counters_differ"),
    (lost_day, 9, "counters_differ"),
    (reader_misses_an_event, 10, "seq_gaps"),
    (reader_sees_an_event_twice, 10, "seq_duplicates"),
    (reader_sees_another_event, 10, "reader_differs"),
    (reader_never_sees_the_end, 10, "reader_differs"),
    (log_with_a_gap, 11, "seq_gaps"),
    (log_with_a_number_twice, 11, "seq_duplicates"),
    (second_epoch, 11, "epochs"),
    (record_differs_from_its_log, 11, "fold_differs"),
    (still_due_after_the_end, 11, "left_waiting"),
    (client_got_the_rejected_text, 12, "client_text_differs"),
    (client_of_a_cancelled_turn_got_an_answer, 12, "client_text_differs"),
    (lost_draft_is_part_of_the_answer, 12, "answer_differs"),
    (stored_text_is_not_what_was_told, 12, "answer_differs"),
    (done_names_a_lost_delivery, 13, "wrong_files"),
    (response_file_of_an_older_turn, 13, "wrong_files"),
    (delivery_nobody_claimed, 13, "wrong_files"),
    (recovered_too_late, 14, "slow_recoveries"),
    (recovered_too_late_after_overlapping_faults, 14, "slow_recoveries"),
    (ended_after_its_deadline, 14, "after_the_deadline"),
    (clients_without_an_answer, 14, "clients_left"),
    (process_left_behind, 15, "leftovers"),
    (copies_left_behind, 15, "leftovers"),
    (key_that_never_expires, 15, "leftovers"),
    (somebody_still_listens, 15, "leftovers"),
    (agents_started_without_a_fault, 20, "starts_unexplained"),
    (one_agent_too_many, 20, "starts_unexplained"),
    (one_agent_too_many_beside_faults_that_explain_none, 20, "starts_unexplained"),
    (acknowledged_and_not_in_the_backup, 21, "missing_in_backup"),
    (ended_and_not_so_in_the_backup, 21, "missing_in_backup"),
    (restore_that_fails, 21, "missing_in_backup"),
    (verified_output_missing_in_the_backup, 21, "missing_in_backup"),
    (too_many_attempts, 16, "over_budget"),
    (more_agents_than_deliveries, 16, "over_budget"),
    (innocent_given_up_as_dead, 16, "dead_innocents"),
]

"""Turn ids, requests and records as they are stored."""

import copy
import json
import pickle
from dataclasses import fields

import pytest

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.decision import DecisionKind, TurnDecision
from api_client.contract.event_kinds import AttemptRejected, TurnFinished
from api_client.contract.events import body_of, data_of
from api_client.contract.interruption import Interruption
from api_client.contract.issue import Severity, ValidationIssue, error_codes, read_issues
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.record import FieldChanges, changes_factory, decode_attempts, decode_turn
from api_client.contract.tasks import ChainTask, all_tasks, build_chain
from api_client.contract.turn import (
    DoubleText,
    Outcome,
    PendingFailure,
    Progress,
    TurnRequest,
    TurnState,
    check_turn_id,
    new_turn_id,
)
from api_client.contract.turn_error import TurnError, error_to_dict
from api_client.contract.worker_reports import WorkerReport

REQUEST = TurnRequest(
    model="m",
    messages=({"role": "user", "content": "Grüße \u2028"},),
    session_id="s",
    double_text=DoubleText.REJECT,
    metadata={"a": "b"},
)


@pytest.mark.parametrize(
    "garbage", ["", "turn", "turn-xyz", "../x", f"turn-{31 * 'a'}", f"t-{32 * 'a'}", f"turn-{32 * 'A'}"]
)
def test_garbage_is_no_turn_id(garbage: str) -> None:
    with pytest.raises(ValueError, match="not a turn id"):
        check_turn_id(garbage)


def test_every_key_carries_the_namespace_as_its_hash_tag() -> None:
    turn_id = new_turn_id()
    keys = keys_for_turn("ns", turn_id)
    names = [
        keys.turn(turn_id),
        keys.log(turn_id),
        keys.attempts(turn_id),
        keys.session("s"),
        keys.totals,
        keys.bucket_key("day", 0),
    ]
    assert all(
        name.startswith("ns:{ns}:") for name in [*names, keys.due, keys.dead, keys.finished, keys.idempotency("o", "k")]
    )


def test_sessions_and_idempotency_keys_cannot_be_confused_by_their_spelling() -> None:
    keys = Keys("ns")
    assert keys.idempotency("a", "bc") != keys.idempotency("ab", "c")
    assert keys.session("a:b") != keys.session("a")


def test_a_request_survives_being_stored_and_one_of_a_newer_version_can_be_read() -> None:
    assert TurnRequest.from_json(REQUEST.to_json()) == REQUEST
    newer = json.dumps({**json.loads(REQUEST.to_json()), "colour": "blue"})
    assert TurnRequest.from_json(newer) == REQUEST


def test_a_record_of_a_newer_version_can_be_read() -> None:
    turn_id = new_turn_id()
    stored = {b"id": turn_id.encode(), b"epoch": b"e", b"state": b"queued", b"request": REQUEST.to_json().encode()}
    turn = decode_turn({**stored, b"colour": b"blue"})
    assert (turn.state, turn.request, turn.outcome) == (TurnState.QUEUED, REQUEST, None)
    with pytest.raises(ValueError, match="epoch is missing"):
        decode_turn({name: value for name, value in stored.items() if name != b"epoch"})


def test_attempts_are_read_in_order_with_the_facts_that_are_there() -> None:
    first, second = decode_attempts({b"2:text": b"b", b"1:text": b"a", b"1:issues": b'[{"code": "X"}]', b"1:new": b"?"})
    assert (first.number, first.text, first.issues, second.number) == (1, "a", (ValidationIssue("X", "", ""),), 2)


def test_exactly_four_outcomes_are_successes() -> None:
    successes = {outcome.value for outcome in Outcome if outcome.success}
    assert successes == {"passed", "passed_after_retry", "passed_by_fallback", "passed_by_human"}


@pytest.mark.parametrize("task", list(all_tasks()))
def test_a_link_is_read_back_and_its_messages_carry_ids_only(task: str) -> None:
    link = ChainTask(task, 2)
    assert ChainTask.parse(str(link)) == link
    messages = build_chain(link, "turn-x", "s")
    assert messages[0]["name"] == task
    assert all(set(message["kwargs"]) == {"turn_id", "attempt", "session_id"} for message in messages)


@pytest.mark.parametrize("garbage", ["", "turn.run", "turn.run/x", "os.system/1", "turn.run/-1"])
def test_garbage_is_no_link(garbage: str) -> None:
    with pytest.raises(ValueError, match="not a task"):
        ChainTask.parse(garbage)


# Changes of a record: declared once, written and read by the types of that declaration.

VALUES = {
    "str": "text",
    "int": 7,
    "bool": True,
    "float": 2.5,
    "PendingFailure | None": PendingFailure(
        outcome=Outcome.INCOMPLETE, code="incomplete", reason="cut", why="broke_off"
    ),
    "Interruption | None": Interruption(kind="webhook", asked={"url": "x"}, answer="approve"),
    "dict[str, Any]": {"a": 1},
    "tuple[ValidationIssue, ...]": (ValidationIssue("X", "wrong", "right", file="a.md", line=3),),
    "tuple[str, ...]": ("a", "b"),
}


def every_field(record: type) -> dict[str, object]:
    return {each.name: VALUES[str(each.type)] for each in fields(record)}


def test_every_field_a_holder_may_change_is_read_from_the_record_as_it_was_written() -> None:
    changes = changes_factory(Progress)(**every_field(Progress))
    request = TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id="s")
    stored = {"id": "turn-1", "epoch": "e", "state": "running", "request": request.to_json(), **changes.to_texts()}
    turn = decode_turn({name.encode(): text.encode() for name, text in stored.items()})
    assert {name: getattr(turn, name) for name in changes.values} == changes.values


def test_every_fact_of_an_attempt_is_read_as_it_was_written() -> None:
    changes = changes_factory(AttemptFacts)(**every_field(AttemptFacts))
    [record] = decode_attempts({f"2:{name}".encode(): text.encode() for name, text in changes.to_texts().items()})
    assert {name: getattr(record, name) for name in changes.values} == changes.values
    assert record.number == 2


@pytest.mark.parametrize("record", [Progress, AttemptFacts])
def test_changes_survive_a_seal_with_what_a_newer_version_wrote(record: type) -> None:
    texts = {**FieldChanges(record, every_field(record)).to_texts(), "of_a_newer_version": "kept"}
    assert FieldChanges.from_texts(record, texts).to_texts() == texts


@pytest.mark.parametrize("record", [Progress, AttemptFacts])
def test_a_field_that_is_set_to_nothing_is_read_as_nothing(record: type) -> None:
    nothing = {each.name: getattr(record(), each.name) for each in fields(record)}
    assert FieldChanges.from_texts(record, FieldChanges(record, nothing).to_texts()).values == nothing


def test_later_changes_win() -> None:
    make = changes_factory(Progress)
    assert make(best=1, stage=1) | make(best=2) == make(best=2, stage=1)


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="by name"):
        changes_factory(Progress)("s-1")  # type: ignore[misc]


# Issues, a turn's error and a person's decision: typed in the program, the same JSON as ever on the wire.

ISSUE = ValidationIssue("A", "wrong", "right", "warning", "v", "a.md", 3, "## X", adr="ADR-1")
WIRE = {
    "code": "A",
    "message": "wrong",
    "fix_hint": "right",
    "severity": "warning",
    "validator": "v",
    "file": "a.md",
    "line": 3,
    "part": "## X",
    "shortens": False,
    "adr": "ADR-1",
}


def test_an_issue_keeps_its_form_on_the_wire() -> None:
    assert ISSUE.to_dict() == WIRE
    assert json.loads(json.dumps(ISSUE.to_dict())) == WIRE
    assert ValidationIssue.from_dict(WIRE) == ISSUE


@pytest.mark.parametrize("damaged", [{}, {"code": 7, "message": None, "line": "x", "severity": "fatal", "colour": 1}])
def test_an_issue_of_another_version_is_read_as_an_error_with_what_fits(damaged: dict[str, object]) -> None:
    assert ValidationIssue.from_dict(damaged) == ValidationIssue("", "", "")
    assert read_issues(["no issue", damaged, None]) == (ValidationIssue("", "", ""),)
    assert read_issues("no list") == ()


def test_the_codes_of_errors_leave_warnings_out_and_name_each_once() -> None:
    errors = [ValidationIssue(code, "", "") for code in ("B", "C", "B")]
    assert error_codes([ISSUE, *errors]) == ("B", "C")


def test_an_error_keeps_its_form_on_the_wire_and_none_is_an_empty_object() -> None:
    error = TurnError(code="failed", message="no", reason="rejected", issues=(ISSUE,))
    wire = {"code": "failed", "message": "no", "reason": "rejected", "issues": [WIRE]}
    assert error.to_dict() == wire
    assert TurnError.from_json(json.dumps(wire)) == error
    assert (error_to_dict(None), TurnError.from_json("{}"), TurnError.from_json("")) == ({}, None, None)


def test_what_the_store_itself_wrote_of_an_error_is_read() -> None:
    error = TurnError.from_json('{"code":"expired","message":"too late","reason":"deadline"}')
    assert error == TurnError(code="expired", message="too late", reason="deadline")


@pytest.mark.parametrize("damaged", ["[]", '"text"', "7", "null"])
def test_an_error_of_another_shape_is_read_as_none(damaged: str) -> None:
    assert TurnError.from_json(damaged) is None


def test_a_decision_keeps_its_form_on_the_wire() -> None:
    wire = {"kind": "edit", "by": "key:1", "for": "alice", "note": "n", "text": "t", "at": 1.5}
    decision = TurnDecision.from_json(json.dumps(wire))
    assert decision is not None
    assert (decision.kind, decision.for_, decision.to_dict()) == (DecisionKind.EDIT, "alice", wire)
    assert (decision.who, decision.timed_out) == ("key:1 for alice", False)
    assert TurnDecision.from_json("") is None
    assert TurnDecision(kind=DecisionKind.REJECT, by="timeout").who == "the time-out"


def test_events_carry_issues_and_errors_as_objects() -> None:
    rejected = AttemptRejected(attempt=1, issues=(ISSUE,))
    assert json.loads(json.dumps(data_of(rejected))) == {"attempt": 1, "issues": [WIRE]}
    assert body_of("attempt.rejected", data_of(rejected)) == rejected
    assert body_of("attempt.rejected", data_of(rejected)).issues[0].severity is Severity.WARNING
    ended = body_of("turn.finished", {"error": {"code": "failed", "issues": [WIRE]}})
    assert isinstance(ended, TurnFinished)
    assert ended.error == TurnError(code="failed", issues=(ISSUE,))
    assert data_of(ended)["error"]["issues"] == [WIRE]


# What worker processes report: the wire form, and reports of another version.

REPORT = WorkerReport(name="run-1@h", at=5.5, host="h", pid=7, queues=("q",), slots=4, stalled=True, validators=("v",))


def test_a_report_is_read_as_it_was_written_and_its_name_is_its_key() -> None:
    assert "name" not in json.loads(REPORT.to_json())
    assert WorkerReport.from_json("run-1@h", REPORT.to_json()) == REPORT


def test_a_report_of_another_version_is_read_with_what_fits() -> None:
    other = '{"at": 5, "queues": "none", "slots": null, "took_at": "never", "colour": "blue"}'
    assert WorkerReport.from_json("w", other) == WorkerReport(name="w", at=5)


@pytest.mark.parametrize("garbage", ["", "[]", "7", "null", "{"])
def test_garbage_is_refused(garbage: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        WorkerReport.from_json("w", garbage)


@pytest.mark.parametrize("word", [Outcome.PASSED, Outcome("later")])
def test_a_word_of_a_later_version_can_be_copied_and_sent_to_another_process(word: Outcome) -> None:
    for found in (copy.copy(word), copy.deepcopy(word), pickle.loads(pickle.dumps(word))):
        assert (found, type(found), found.value) == (word, Outcome, word.value)

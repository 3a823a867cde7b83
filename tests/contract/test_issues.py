"""Issues, a turn's error and a person's decision: typed in the program, the same JSON as ever on the wire."""

from __future__ import annotations

import json

import pytest

from api_client.contract.escalation import DecisionKind, InboxDecision
from api_client.contract.event_kinds import AttemptRejected, TurnFinished
from api_client.contract.events import body_of, data_of
from api_client.contract.issues.issue import Severity, ValidationIssue, error_codes, read_issues
from api_client.contract.issues.turn_error import TurnError, error_data

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
    assert (error_data(None), TurnError.from_json("{}"), TurnError.from_json("")) == ({}, None, None)


def test_what_the_store_itself_wrote_of_an_error_is_read() -> None:
    error = TurnError.from_json('{"code":"expired","message":"too late","reason":"deadline"}')
    assert error == TurnError(code="expired", message="too late", reason="deadline")


@pytest.mark.parametrize("damaged", ["[]", '"text"', "7", "null"])
def test_an_error_of_another_shape_is_read_as_none(damaged: str) -> None:
    assert TurnError.from_json(damaged) is None


def test_a_decision_keeps_its_form_on_the_wire() -> None:
    wire = {"kind": "edit", "by": "key:1", "for": "alice", "note": "n", "text": "t", "at": 1.5}
    decision = InboxDecision.from_json(json.dumps(wire))
    assert decision is not None
    assert (decision.kind, decision.for_, decision.to_dict()) == (DecisionKind.EDIT, "alice", wire)
    assert (decision.who, decision.timed_out) == ("key:1 for alice", False)
    assert InboxDecision.from_json("") is None
    assert InboxDecision(kind=DecisionKind.REJECT, by="timeout").who == "the time-out"


def test_events_carry_issues_and_errors_as_objects() -> None:
    rejected = AttemptRejected(attempt=1, issues=(ISSUE,))
    assert json.loads(json.dumps(data_of(rejected))) == {"attempt": 1, "issues": [WIRE]}
    assert body_of("attempt.rejected", data_of(rejected)) == rejected
    assert body_of("attempt.rejected", data_of(rejected)).issues[0].severity is Severity.WARNING
    ended = body_of("turn.finished", {"error": {"code": "failed", "issues": [WIRE]}})
    assert isinstance(ended, TurnFinished)
    assert ended.error == TurnError(code="failed", issues=(ISSUE,))
    assert data_of(ended)["error"]["issues"] == [WIRE]

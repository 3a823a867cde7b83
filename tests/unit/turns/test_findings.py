"""What was found, told with file and line: in the end message, to the model of an escalation, after a person's note."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api_client.contract.attempt import AttemptRecord
from api_client.contract.errors import BadRequest
from api_client.contract.escalation import DecisionKind, Escalation, InboxDecision, check_escalation
from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.tasks import FAIL, PHASE_RUN, PHASE_VERIFY, Link
from api_client.contract.turn import Failing, Turn, TurnRequest, TurnState
from api_client.contract.words.messages import line_of
from worker.turns.transitions.after_decision import after_decision
from worker.turns.transitions.after_judging import after_giving_up
from worker.turns.transitions.after_verification import after_verification
from worker.turns.transitions.moves import Move
from worker.verification import VerificationResult
from worker.verification.codes import issue
from worker.verification.gates.base import GateReport, GateResult
from worker.verification.phase_loop import feedback_on
from worker.verification.result import gates_result

SYNTAX = issue("PYTHON_SYNTAX", "en", file="add.py", line=1, problem="'(' was never closed")
MISSING = issue("MISSING_FILE", "en", file="b.py", path="b.py", suggestion="")
TOLD = f"PYTHON_SYNTAX: add.py:1: {SYNTAX.message}"


def gates(*found: ValidationIssue) -> VerificationResult:
    return gates_result(GateReport(results=(GateResult(gate="syntax", issues=found),)))


def turn(escalation: Escalation | None = None) -> Turn:
    request = TurnRequest(
        model="m",
        messages=(),
        session_id="s",
        phase={"id": "build"},
        max_attempts=1,
        locale="en",
        escalation=escalation,
    )
    return Turn(turn_id="t0-" + "0" * 32, epoch="e", state=TurnState.VALIDATING, request=request)


def verified(escalation: Escalation | None) -> Move:
    record = AttemptRecord(number=1, text="Done.")
    return after_verification(turn(escalation), Link(PHASE_VERIFY, 1), record, gates(SYNTAX), stop="")


def test_a_finding_is_told_with_code_place_and_message() -> None:
    assert line_of(SYNTAX) == TOLD
    assert line_of(MISSING) == f"MISSING_FILE: {MISSING.message}"  # the message names the file
    assert line_of(ValidationIssue("X", "y", "", line=3)) == "X: y"  # a line of an answer nobody sees
    assert line_of(ValidationIssue("X", "", "")) == "X: "


def test_the_model_of_an_escalation_is_told_file_and_line() -> None:
    move = verified(Escalation(model="big"))
    assert move.next == Link(PHASE_RUN, 2)
    assert f"- {TOLD}" in move.facts.values["feedback"]


def test_the_end_message_names_file_and_line() -> None:
    failing = Failing(code="phase_not_verified", reason="rejected")
    ended = after_giving_up(turn(), Link(FAIL, 1), failing, [SYNTAX])
    assert f"- {TOLD}" in ended.answer.error.message


@pytest.mark.parametrize("kind", [DecisionKind.RETRY, DecisionKind.REJECT])
def test_a_persons_decision_carries_file_and_line(kind: DecisionKind) -> None:
    decision = InboxDecision(kind=kind, by="me", note="Close it.")
    parked = replace(turn(Escalation()), best=1, decision=decision)
    record = AttemptRecord(number=1, text="Done.", issues=(SYNTAX,))
    move = after_decision(parked, 1, record)
    told = move.facts.values["feedback"] if kind == "retry" else move.answer.error.message
    assert f"- {TOLD}" in told


def test_feedback_tells_each_finding_of_a_gate_once() -> None:
    told = feedback_on(gates(SYNTAX, MISSING))
    for found in (SYNTAX, MISSING):
        assert told.count(found.message) == 1
        assert told.count(found.fix_hint) == 1


def test_feedback_of_a_verifier_keeps_errors_and_advice() -> None:
    told = feedback_on(VerificationResult(success=False, errors=["no docstring", "no test"], feedback="Add both."))
    assert told == "- no docstring\n- no test\n\nAdd both."
    same = feedback_on(VerificationResult(success=False, errors=["no docstring"], feedback="no docstring"))
    assert same == "- no docstring"


@pytest.mark.parametrize("escalation", [Escalation(model="big", runs=0), Escalation(model="", runs=3)])
def test_no_runs_or_no_model_leave_stage_one_out(escalation: Escalation) -> None:
    check_escalation(escalation, {"big": "scripted"})
    assert verified(escalation).state is TurnState.PARKED
    assert verified(replace(escalation, human=False)).next == Link(FAIL, 1)


def test_runs_beyond_the_limits_are_refused_with_what_zero_means() -> None:
    for runs in (-1, 11):
        with pytest.raises(BadRequest, match=rf"from 0 \(no stage 1\) to 10, not {runs}"):
            check_escalation(Escalation(model="big", runs=runs), {"big": "scripted"})

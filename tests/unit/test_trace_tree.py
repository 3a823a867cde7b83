"""A turn's log as spans: what the tree looks like, and that nobody's text gets into it."""

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.events import Event
from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.contract.turn_error import TurnError
from api_client.tracing.trace_spans import (
    Span,
    build_spans,
    caller_span,
    derive_span_id,
    find_trace_id,
    select_traceparent,
)
from tests.event_table import KINDS

TEXT = "what somebody wrote"
ISSUE = {"code": "BAD", "message": TEXT, "fix_hint": TEXT, "severity": "error", "validator": "step_marker"}
WARNING = {**ISSUE, "code": "POOR", "severity": "warning", "validator": "adr_structure"}
USED = {"input_tokens": 10, "output_tokens": 1, "cost_usd": 0.5}


def turn_of(outcome: Outcome, **request: Any) -> Turn:
    asked = TurnRequest(
        model="big",
        messages=({"role": "user", "content": TEXT},),
        session_id="s1",
        validators=("step_marker", "adr_structure"),
        metadata={"note": TEXT},
        labels={"flow": "v2"},
    )
    return Turn(
        turn_id="turn-" + "ab" * 16,
        epoch="e1",
        state=TurnState.FINISHED,
        request=replace(asked, **request),
        outcome=outcome,
        response=TEXT,
        error=TurnError(code=outcome.value, message=TEXT, reason=TEXT),
        created_at=100.0,
        finished_at=200.0,
        attempt=3,
        delivery=5,
    )


def log_of(*told: tuple[float, str, dict[str, Any]]) -> list[Event]:
    return [Event(seq=n, epoch="e1", at=at, kind=kind, data=data) for n, (at, kind, data) in enumerate(told, 1)]


EVERYTHING = log_of(
    (100, "turn.queued", {"position": 0}),
    (100, "turn.paused", {"what": "model", "reason": TEXT, "until": 101}),
    (101, "turn.resumed", {}),
    (101, "attempt.started", {"attempt": 1, "delivery": 1, "max_attempts": 3, "worker": "w"}),
    (102, "attempt.output", {"attempt": 1, "text": TEXT}),
    (103, "attempt.reset", {"attempt": 1, "reason": TEXT}),
    (103, "attempt.note", {"attempt": 1, "text": TEXT}),
    (104, "attempt.tool", {"attempt": 1, "name": "Read", "detail": TEXT}),
    (110, "attempt.lost", {"attempt": 1, "delivery": 1, "during": "running", "silent_ms": 6000, "usage": USED}),
    (111, "attempt.started", {"attempt": 1, "delivery": 2, "max_attempts": 3, "worker": "w"}),
    (112, "attempt.completed", {"attempt": 1, "verdict": "error", "reason": TEXT, "usage": USED}),
    (112, "turn.retrying", {"attempt": 1, "reason": "transient", "delay_seconds": 1.0}),
    (113, "attempt.started", {"attempt": 1, "delivery": 3, "max_attempts": 3, "worker": "w"}),
    (114, "attempt.completed", {"attempt": 1, "verdict": "complete", "reason": TEXT, "usage": USED}),
    (115, "attempt.rejected", {"attempt": 1, "issues": [ISSUE, WARNING]}),
    (115, "turn.retrying", {"attempt": 2, "reason": "rejected", "codes": ["BAD"], "feedback": TEXT}),
    (116, "attempt.started", {"attempt": 2, "delivery": 4, "max_attempts": 3, "worker": "w"}),
    (117, "attempt.completed", {"attempt": 2, "verdict": "incomplete", "reason": TEXT}),
    (117, "turn.escalated", {"attempt": 2, "stage": 1, "reason": "incomplete", "model": "bigger", "issues": [ISSUE]}),
    (118, "attempt.started", {"attempt": 3, "delivery": 5, "max_attempts": 3, "worker": "w"}),
    (119, "attempt.completed", {"attempt": 3, "verdict": "complete", "reason": TEXT, "usage": USED}),
    (120, "gate.checked", {"attempt": 3, "gate": f"command: {TEXT}", "passed": True, "skipped": False, "issues": []}),
    (121, "verifier.started", {"attempt": 3, "model": "small"}),
    (125, "verifier.judged", {"attempt": 3, "success": True, "ground": "verdict", "errors": [TEXT]}),
    (126, "attempt.rejected", {"attempt": 3, "issues": [ISSUE]}),
    (126, "turn.fallback", {"attempt": 3, "codes": ["BAD"]}),
    (127, "turn.mended", {"attempt": 3, "changes": [TEXT], "fixed": [ISSUE], "step": "done"}),
    (
        128,
        "turn.suspended",
        {"attempt": 3, "turn_id": "t", "reason": "rejected", "timeout_seconds": 9, "default": "reject"},
    ),
    (130, "turn.decided", {"attempt": 3, "kind": "approve", "by": TEXT, "note": TEXT}),
    (131, "turn.stopping", {"reason": "cancelled"}),
    (200, "turn.finished", {"outcome": "passed_by_human", "response": TEXT, "error": {"message": TEXT}}),
)


def by_key(spans: list[Span]) -> dict[str, Span]:
    assert len({span.key for span in spans}) == len(spans)
    return {span.key: span for span in spans}


def test_an_attempt_is_one_span_whatever_happened_to_it_and_every_run_of_it_counts() -> None:
    spans = by_key(build_spans(turn_of(Outcome.PASSED_BY_HUMAN), EVERYTHING, {"big": "openai"}))
    first = spans["attempt 1"]
    assert (first.start, first.end, first.error, first.parent) == (101, 115, "rejected", "")
    assert first.attributes["gen_ai.usage.input_tokens"] == 30
    assert first.attributes["helix.usage.cost_usd"] == 1.5
    assert first.attributes["gen_ai.provider.name"] == "openai"
    assert [note.name for note in first.notes][1:] == ["attempt.tool", "attempt.lost", *["attempt.started"] * 2]
    assert (spans["attempt 2"].error, spans["attempt 3"].name) == ("incomplete", "invoke_agent bigger")
    checks = {(span.parent, span.name): span for span in spans.values() if span.name.startswith("evaluate ")}
    assert checks["attempt 1", "evaluate step_marker"].attributes["gen_ai.evaluation.score.label"] == "fail"
    assert checks["attempt 1", "evaluate adr_structure"].attributes["gen_ai.evaluation.score.label"] == "pass"
    assert (checks["attempt 3", "evaluate verifier"].start, checks["attempt 3", "evaluate verifier"].end) == (121, 125)
    assert (spans["fallback"].start, spans["fallback"].end) == (126, 127)
    assert spans[""].error == ""


def test_no_text_that_somebody_wrote_gets_into_a_trace() -> None:
    assert {event.kind for event in EVERYTHING} >= set(KINDS) - {"attempt.accepted"}
    for work in ("", "phase"):
        spans = build_spans(turn_of(Outcome.FAILED, work=work, work_data={"goal": TEXT}), EVERYTHING, {})
        assert TEXT not in repr(spans)
    assert [span.name for span in spans if span.name.startswith("evaluate")] == [
        "evaluate command",
        "evaluate verifier",
    ]


def test_a_parent_is_there_and_contains_its_children() -> None:
    spans = by_key(build_spans(turn_of(Outcome.PASSED_BY_HUMAN), EVERYTHING, {}))
    assert [key for key, span in spans.items() if span.parent is None] == [""]
    for span in spans.values():
        assert span.start <= span.end
        if span.parent is not None:
            assert spans[span.parent].start <= span.start
            assert span.end <= spans[span.parent].end


@pytest.mark.parametrize("outcome", Outcome)
def test_a_turn_without_an_answer_is_an_error_unless_it_was_called_off(outcome: Outcome) -> None:
    [whole] = build_spans(turn_of(outcome), [], {})
    assert whole.error == ("" if outcome.success or outcome is Outcome.CANCELLED else outcome.value)


def test_ids_follow_from_the_turn_alone() -> None:
    turn = turn_of(Outcome.PASSED)
    assert f"{find_trace_id(turn):032x}" == "ab" * 16
    assert derive_span_id(turn, "attempt 1") == derive_span_id(replace(turn, response="x"), "attempt 1")
    assert derive_span_id(turn, "attempt 1") != derive_span_id(turn, "attempt 2")
    assert derive_span_id(turn, "") != derive_span_id(replace(turn, epoch="e2"), "")


CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_turn_belongs_to_the_trace_of_its_caller() -> None:
    turn = turn_of(Outcome.PASSED, traceparent=CALLER)
    assert f"{find_trace_id(turn):032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert caller_span(CALLER) == (find_trace_id(turn), 0xB7AD6B7169203331)
    assert caller_span(f"01{CALLER[2:]}-what-comes-later")


@pytest.mark.parametrize(
    "header",
    [
        "",
        CALLER[:-1] + "0",  # the caller does not record it: below its span nothing would hang together
        CALLER + "-more",
        CALLER.upper(),
        "ff" + CALLER[2:],
        CALLER.replace("b7ad6b7169203331", "0" * 16),
        CALLER.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        CALLER + "\n",
        "\u0660" * 55,
    ],
)
def test_without_a_span_of_the_caller_a_turn_has_a_trace_of_its_own(header: str) -> None:
    assert caller_span(header) is None
    assert select_traceparent([header]) == ""
    assert f"{find_trace_id(turn_of(Outcome.PASSED, traceparent=header)):032x}" == "ab" * 16


def test_two_headers_name_no_caller() -> None:
    assert (select_traceparent([CALLER]), select_traceparent([CALLER, CALLER]), select_traceparent([])) == (
        CALLER,
        "",
        "",
    )

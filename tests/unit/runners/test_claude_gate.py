"""The completion gate over evidence: what is complete, and which lack of evidence makes which verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runners.base import ErrorKind, Verdict, Why
from worker.runners.claude.completion_gate import Evidence, judge
from worker.runners.claude.hooks import END, START, STOP, STOP_FAILURE, Mark

OK = {"subtype": "success", "is_error": False, "terminal_reason": "completed"}
MINE = Mark(run="t.1.1", session="s-1")
GOOD = Evidence(
    run="t.1.1", session="s-1", exit_code=0, marks={START: MINE, STOP: MINE, END: MINE}, result=OK, text="Gut."
)


def failed(**result: Any) -> Evidence:
    return replace(GOOD, exit_code=1, result={"subtype": "success", "is_error": True, **result}, marks={START: MINE})


def test_all_the_evidence_makes_a_run_complete() -> None:
    completion = judge(GOOD, {"bytes": 3})
    assert completion.verdict is Verdict.COMPLETE
    assert completion.evidence["hooks"] == [START, STOP, END]
    assert completion.evidence["bytes"] == 3


def test_a_lost_standard_output_is_no_harm_and_is_recorded() -> None:
    completion = judge(replace(GOOD, result={}))
    assert completion.verdict is Verdict.COMPLETE
    assert completion.evidence["stdout_lost"] is True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"exit_code": None}, "nobody knows"),
        ({"exit_code": -9}, "signal 9"),
        ({"exit_code": 143}, "exit code 143"),
        ({"text": " \n"}, "said nothing"),
        ({"result": {"subtype": "error_during_execution", "is_error": True}}, "error_during_execution"),
        ({"result": OK | {"terminal_reason": "aborted_streaming"}}, "aborted_streaming"),
        ({"result": OK | {"stop_reason": "pause_turn"}}, "stopped before the answer was whole: pause_turn"),
        ({"result": {}, "stop_reason": "max_tokens"}, "stopped before the answer was whole: max_tokens"),
        ({"missing": "the transcript is torn"}, "may not be whole: the transcript is torn"),
        ({"result": {}, "missing": "no transcript"}, "may not be whole: no transcript"),
        ({"marks": {START: MINE, END: MINE}}, "without the hook Stop"),
        ({"marks": {START: MINE, STOP: MINE}}, "without the hook SessionEnd"),
        ({"marks": {START: MINE, STOP: replace(MINE, run="t.1.2"), END: MINE}}, "without the hook Stop of this run"),
        ({"marks": {START: MINE, STOP: MINE, END: replace(MINE, session="s-2")}}, "without the hook SessionEnd"),
        ({"marks": {START: replace(MINE, run=""), STOP: MINE, END: MINE}}, "without the hook SessionStart"),
        ({"marks": {**GOOD.marks, STOP_FAILURE: MINE}}, "ended in a failure"),
        ({"marks": {**GOOD.marks, STOP: replace(MINE, background=1)}}, "background tasks"),
    ],
)
def test_each_missing_piece_makes_it_incomplete(change: dict[str, Any], reason: str) -> None:
    completion = judge(replace(GOOD, **change))
    assert (completion.verdict, completion.kind) == (Verdict.INCOMPLETE, None)
    assert reason in completion.reason


def test_a_success_without_any_hook_is_a_matter_of_set_up_and_no_retry() -> None:
    completion = judge(replace(GOOD, marks={}))
    assert completion.kind is ErrorKind.CONFIG
    assert "hooks did not load" in completion.reason


@pytest.mark.parametrize("ending", ["api_error", "image_error", "prompt_too_long", "completed", "anything_new"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "permanent"), (401, "permanent"), (403, "permanent"), (404, "permanent"), (413, "permanent"),
     (408, "transient"), (429, "transient"), (500, "transient"), (503, "transient"), (529, "transient")],
)  # fmt: skip
def test_an_error_of_the_service_passes_or_lasts_by_its_status_whatever_the_cli_says_of_its_ending(
    status: int, kind: str, ending: str
) -> None:
    completion = judge(failed(terminal_reason=ending, api_error_status=status, result="API Error"))
    assert completion.kind == kind
    assert completion.busy is (status in {429, 529})


def test_an_error_without_a_status_passes() -> None:
    assert judge(failed(terminal_reason="api_error", api_error_status=None, result="x")).kind is ErrorKind.TRANSIENT


@pytest.mark.parametrize(
    ("error", "ending"), [("max_output_tokens", "api_error"), ("", "prompt_too_long"), ("max_output_tokens", "x")]
)
def test_an_answer_or_a_question_too_long_for_the_model_is_a_limit(error: str, ending: str) -> None:
    assert judge(replace(failed(terminal_reason=ending, result="too long"), error=error)).kind is ErrorKind.LIMIT


def test_a_folder_that_takes_no_marks_is_the_machine_s_fault_and_is_named() -> None:
    full = replace(GOOD, marks={}, unwritable="[Errno 28] No space left on device")
    completion = judge(full)
    assert completion.kind is ErrorKind.HOST
    assert completion.reason == "the run's folder cannot be written: [Errno 28] No space left on device"
    assert judge(replace(full, marks={START: MINE}, exit_code=1)).kind is ErrorKind.HOST


@pytest.mark.parametrize(
    ("error", "kind", "busy"),
    [("rate_limit", "transient", True), ("server_error", "transient", False), ("invalid_request", "permanent", False),
     ("authentication_failed", "config", False), ("max_output_tokens", "limit", False), ("something", None, False)],
)  # fmt: skip
def test_an_error_whose_result_was_lost_is_known_from_its_hook(error: str, kind: str | None, busy: bool) -> None:
    marks = {START: MINE, STOP_FAILURE: replace(MINE, error=error, message="API Error"), END: MINE}
    completion = judge(replace(GOOD, exit_code=1, result={}, marks=marks, text=""))
    assert (completion.kind, completion.busy) == (kind, busy)
    assert kind is None or completion.reason == "API Error"
    assert kind or completion.verdict is Verdict.INCOMPLETE
    foreign = {**marks, STOP_FAILURE: replace(marks[STOP_FAILURE], run="t.1.2")}
    assert judge(replace(GOOD, exit_code=1, result={}, marks=foreign, text="")).verdict is Verdict.INCOMPLETE


JARGON = '[claude-code:unrecognized_model] {"model": "claude-x"}'


def test_what_the_cli_writes_for_other_programs_reaches_no_reason() -> None:
    completion = judge(replace(failed(terminal_reason="api_error", result="API Error: 400"), stderr=JARGON))
    assert completion.reason == "API Error: 400"
    silent = failed(terminal_reason="api_error", api_error_status=400)
    assert judge(replace(silent, stderr=f"{JARGON}\nno such model\n{JARGON}")).reason == "no such model"
    assert "unrecognized_model" not in judge(replace(silent, stderr=JARGON)).reason
    refused = replace(GOOD, exit_code=1, result={}, marks={}, text="", stderr=f"{JARGON}\nerror: unknown option '--x'")
    assert judge(refused).reason == "error: unknown option '--x'"


@pytest.mark.parametrize(
    ("error", "said", "kind"),
    [("authentication_failed", "x", "config"), ("", "Not logged in · Please run /login", "config"),
     ("invalid_request", "x", "permanent"), ("unknown", "socket hang up", "transient")],
)  # fmt: skip
def test_an_error_without_a_status_goes_by_what_the_cli_says(error: str, said: str, kind: str) -> None:
    assert judge(replace(failed(terminal_reason="api_error", result=said), error=error)).kind == kind


def test_the_wish_to_wait_goes_with_passing_errors_only() -> None:
    busy = replace(failed(terminal_reason="api_error", api_error_status=429), retry_after=7.0)
    assert judge(busy).retry_after == 7.0
    assert judge(replace(busy, result={**busy.result, "api_error_status": 400})).retry_after == 0.0


@pytest.mark.parametrize("subtype", ["error_max_turns", "error_max_budget_usd"])
def test_a_limit_of_the_agent_is_a_limit(subtype: str) -> None:
    assert judge(failed(subtype=subtype)).kind is ErrorKind.LIMIT


def test_a_session_that_is_gone_is_told_apart() -> None:
    gone = failed(subtype="error_during_execution", errors=["No conversation found with session ID: x"])
    assert judge(replace(gone, text="", marks={END: MINE})).kind is ErrorKind.SESSION_LOST


def test_an_answer_may_talk_about_lost_conversations() -> None:
    talking = replace(GOOD, text="No conversation found", result=OK | {"result": "No conversation found"})
    assert judge(talking).verdict is Verdict.COMPLETE


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [("error: unknown option '--x'", "config"), ("cannot be used with root/sudo privileges", "config"),
     ("Error: Session ID 1 is already in use.", "transient"), ("panic", None)],
)  # fmt: skip
def test_a_start_that_was_refused_goes_by_its_complaint(stderr: str, kind: str | None) -> None:
    refused = replace(GOOD, exit_code=1, result={}, marks={}, text="", stderr=stderr)
    completion = judge(refused)
    assert completion.kind == kind
    assert kind or completion.verdict is Verdict.INCOMPLETE


MARKS = st.builds(Mark, run=st.sampled_from(["t.1.1", "t.1.2", ""]), session=st.sampled_from(["s-1", "s-2"]),
                  background=st.integers(0, 1))  # fmt: skip
RESULTS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"subtype": st.sampled_from(["success", "error_max_turns", "error_x"]), "is_error": st.booleans()},
        optional={"terminal_reason": st.sampled_from(["completed", "api_error", "max_turns"]),
                  "api_error_status": st.sampled_from([None, 400, 429]),
                  "stop_reason": st.sampled_from([None, "end_turn", "pause_turn"])},
    ),
)  # fmt: skip


@given(
    st.builds(
        Evidence,
        run=st.just("t.1.1"),
        session=st.just("s-1"),
        exit_code=st.sampled_from([0, 1, 143, -9, None]),
        marks=st.dictionaries(st.sampled_from([START, STOP, STOP_FAILURE, END]), MARKS),
        result=RESULTS,
        text=st.sampled_from(["", " ", "Gut."]),
        missing=st.sampled_from(["", "torn"]),
        stop_reason=st.sampled_from(["", "end_turn", "max_tokens"]),
    )
)
def test_nothing_but_the_whole_evidence_is_ever_complete(evidence: Evidence) -> None:
    if judge(evidence).verdict is Verdict.COMPLETE:
        assert evidence.exit_code == 0
        assert {START, STOP, END} <= set(evidence.own)
        assert STOP_FAILURE not in evidence.marks
        assert not evidence.result or (not evidence.result["is_error"] and evidence.result["subtype"] == "success")
        assert evidence.text.strip()
        assert not evidence.missing
        assert (evidence.result.get("stop_reason") or evidence.stop_reason) in {"", None, "end_turn"}
        assert not evidence.marks[STOP].background


def test_a_refusal_that_the_provider_reports_is_a_verdict_of_its_own() -> None:
    for refused in (
        replace(GOOD, result=OK | {"stop_reason": "refusal"}),
        replace(GOOD, result={}, stop_reason="refusal"),
    ):
        completion = judge(refused)
        assert (completion.verdict, completion.why) == (Verdict.REFUSED, Why.REFUSED)
        assert "the model refused" in completion.reason

"""The answer a run left: its file, its standard output, or its transcript, which the real CLI wrote in these tests."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.completion import ErrorKind, IncompleteReason, Verdict
from worker.runners.base import Order
from worker.runners.claude import cli_stream, cli_transcript
from worker.runners.claude.cli_sessions import BaseSession
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.cli_transcript import UnreadableTranscript, extract_run
from worker.runners.claude.completion_gate import RunEvidence, judge_run
from worker.runners.claude.hooks import END, START, STOP, STOP_FAILURE, HookMark
from worker.runners.claude.run_leftovers import RunLeftovers, collect_leftovers
from worker.runners.event_reader import MAX_ANSWER, AnswerTooLong, EventReader
from worker.runners.event_reader import judge_transcript as judge_transcript

RECORDED = Path(__file__).parent / "claude_transcripts"
SESSION = "00000000-0000-5000-8000-000000000001"
PROMPT = b"Nachricht des Nutzers:\n\nHallo"
FEEDBACK = "Rückmeldung der automatischen Prüfung zu deiner letzten Antwort:\n\nFeedback".encode()

OK = {"type": "result", "subtype": "success", "is_error": False}


def transcript(name: str) -> bytes:
    return (RECORDED / f"{name}.jsonl").read_bytes()


def said(text: str, number: int = 1, **more: Any) -> bytes:
    message = {"id": f"m{number}", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    told = {"type": "assistant", "uuid": f"u{number}", "sessionId": SESSION, "message": message, **more}
    return json.dumps(told).encode() + b"\n"


def asked(text: str, number: int = 0, **more: Any) -> bytes:
    told = {"type": "user", "uuid": f"a{number}", "sessionId": SESSION, "message": {"content": text}, **more}
    return json.dumps(told).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "prompt", "text", "last"),
    [
        ("tool", PROMPT, "Vorher Text.\n\nfertig", "fertig"),
        ("max_tokens", PROMPT, "abc def", "def"),
        ("background", PROMPT, "Ich warte.\n\nGuten Tag", "Guten Tag"),
        ("cut", PROMPT, "Ganzer TextGanzer Text", "Ganzer Text"),  # the stub's model starts again, which no model does
        ("refused", PROMPT, "halb\n\ndoch ganz", "doch ganz"),
        ("continued", FEEDBACK, "xxxxxxxxxx", "xxxxxxxxxx"),
        ("empty", PROMPT, "Vorher Text.", ""),
    ],
)
def test_the_transcript_of_the_real_cli_holds_the_answer(name: str, prompt: bytes, text: str, last: str) -> None:
    found = extract_run(transcript(name), SESSION, prompt)
    assert (found.text, found.last, found.stop_reason) == (text, last, "end_turn")


def test_the_same_prompt_asked_again_begins_the_newer_answer() -> None:
    content = asked("Hallo") + said("alt") + asked("Hallo", 1) + said("neu", 2)
    assert extract_run(content, SESSION, b"Hallo").text == "neu"


def test_an_answer_of_the_conversation_before_is_never_taken_for_this_runs() -> None:
    """A run that recorded nothing of its own leaves the base alone: its last answer is another turn's."""
    base = transcript("continued")
    with pytest.raises(UnreadableTranscript, match="does not hold this run's prompt"):
        extract_run(base, SESSION, FEEDBACK, before=base)
    with pytest.raises(UnreadableTranscript):
        extract_run(base, SESSION, b"Etwas anderes")


def test_another_sessions_records_and_a_subagents_are_no_part_of_the_answer() -> None:
    content = asked("Hallo") + said("innen", isSidechain=True) + said("fremd", 2, sessionId="x") + said("gut", 3)
    assert extract_run(content, SESSION, b"Hallo").text == "gut"


def test_what_the_cli_says_itself_is_no_part_of_the_answer() -> None:
    own = {"id": "x", "model": "<synthetic>", "content": [{"type": "text", "text": "API Error: 529"}]}
    content = asked("Hallo") + said("gut") + said("", 2, message=own) + said("so", 3)
    assert extract_run(content, SESSION, b"Hallo").text == "gutso"


def test_a_last_message_without_text_has_none() -> None:
    thought = {"id": "m2", "content": [{"type": "thinking", "thinking": "..."}], "stop_reason": "end_turn"}
    found = extract_run(asked("Hallo") + said("gut") + said("", 2, message=thought), SESSION, b"Hallo")
    assert (found.text, found.last, found.lacks_message(""), found.lacks_message("gut")) == ("gut", "", False, True)


def test_a_torn_line_may_be_a_missing_message() -> None:
    with pytest.raises(UnreadableTranscript, match="line 2 of the transcript is torn"):
        extract_run(asked("Hallo") + said("eins")[:-9] + b"\n" + said("zwei", 2), SESSION, b"Hallo")


def test_an_endless_answer_is_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_stream, "MAX_ANSWER", 10)
    monkeypatch.setattr(cli_transcript, "MAX_ANSWER", 10)
    with pytest.raises(UnreadableTranscript, match="longer than 10"):
        extract_run(asked("Hallo") + said("x" * 11), SESSION, b"Hallo")


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=6), st.integers(0, 200))
def test_no_beginning_of_a_transcript_passes_for_the_whole(texts: list[str], cut: int) -> None:
    """Whatever is cut off, the rest is refused or does not end with the last message, unless nothing was lost."""
    pieces = [said(text, number) for number, text in enumerate([*texts, "das Ende"], 1)]
    whole = asked("Hallo") + b"".join(pieces)
    rest = whole[: max(0, len(whole) - 1 - cut)]
    try:
        found = extract_run(rest, SESSION, b"Hallo")
    except UnreadableTranscript:
        return
    assert found.lacks_message("das Ende") or found.text.endswith("das Ende")
    if not found.lacks_message("das Ende"):
        assert found.text == extract_run(whole, SESSION, b"Hallo").text


class Run:
    """One run's folders, as the CLI leaves them."""

    def __init__(self, order: Order, tmp_path: Path) -> None:
        self.order = order
        self.home = tmp_path / "home"
        self.path = self.home / ".claude" / "projects" / "x" / f"{SESSION}.jsonl"
        self.path.parent.mkdir(parents=True)
        (order.directory / "marks").mkdir()
        (order.directory / "output").mkdir()
        self.stream = ClaudeStream()
        self.base = BaseSession()

    def stopped(self, message: str, path: Path | None = None) -> None:
        heard = {"session_id": SESSION, "transcript_path": str(path or self.path), "last_assistant_message": message}
        (self.order.directory / "marks" / STOP).write_text(f"{self.order.process_tag}\n{json.dumps(heard)}")

    def told(self, *lines: dict[str, Any] | bytes) -> None:
        for line in lines:
            self.stream.take_line(line if isinstance(line, bytes) else json.dumps(line).encode())

    def left(self) -> RunLeftovers:
        return collect_leftovers(self.order, SESSION, PROMPT, self.base, self.home, self.stream)


@pytest.fixture
def run(order: Callable[..., Order], tmp_path: Path) -> Run:
    return Run(order(), tmp_path)


def delta(text: str) -> dict[str, Any]:
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    return {"type": "stream_event", "event": event}


def block(text: str) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": text}]}}


def test_half_of_standard_output_is_not_the_answer(run: Run) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.told(delta("Vorher"))
    left = run.left()
    assert (left.text, left.origin, left.missing) == ("Vorher Text.\n\nfertig", "transcript", "")


def test_without_a_transcript_half_an_answer_stays_half(run: Run) -> None:
    run.stopped("fertig")
    run.told(delta("Vorher"))
    left = run.left()
    assert (left.text, left.origin) == ("Vorher", "output")
    assert "No such file" in left.missing


def test_a_transcript_that_ends_before_the_last_message_proves_nothing(run: Run) -> None:
    run.path.write_bytes(b"".join(transcript("tool").splitlines(keepends=True)[:4]))
    run.stopped("fertig")
    left = run.left()
    assert (left.text, left.origin) == ("Vorher Text.", "transcript")
    assert "does not end with the last message" in left.missing


def test_an_empty_last_message_needs_an_empty_end(run: Run) -> None:
    run.stopped("")
    run.path.write_bytes(transcript("empty"))
    assert run.left().missing == ""
    run.path.write_bytes(transcript("tool"))
    assert "does not end" in run.left().missing


def test_a_killed_run_keeps_the_longest_text_known(run: Run) -> None:
    run.path.write_bytes(b"".join(transcript("tool").splitlines(keepends=True)[:4]))
    (run.order.directory / "marks" / STOP).unlink(missing_ok=True)
    heard = {"session_id": SESSION, "transcript_path": str(run.path)}
    (run.order.directory / "marks" / "SessionStart").write_text(f"x\n{json.dumps(heard)}")
    run.told(delta("Vor"))
    assert run.left().text == "Vorher Text."
    run.told(delta("her Text."), block("Vorher Text."), delta("\n\nfer"))
    assert run.left().text == "Vorher Text.\n\nfer"


def test_a_result_that_the_text_does_not_end_with_proves_nothing(run: Run) -> None:
    run.stopped("Ende")
    run.told(block("Anfang"), OK | {"result": "Ende"})
    assert run.left().missing


def test_standard_output_that_closed_between_two_results_is_not_the_answer(run: Run) -> None:
    run.path.write_bytes(transcript("background"))
    run.stopped("Guten Tag")
    run.told(block("Ich warte."), OK | {"result": "Ich warte."})
    assert (run.left().text, run.left().missing) == ("Ich warte.\n\nGuten Tag", "")
    run.path.unlink()
    assert run.left().missing


def test_the_transcript_helps_where_a_result_does_not_fit(run: Run) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.told(block("Vorher Text."), OK | {"result": "fertig"})
    assert run.left().text == "Vorher Text.\n\nfertig"
    run.told(OK | {"result": "etwas anderes"})
    assert "does not hold the result" in run.left().missing


def test_an_unreadable_line_may_have_been_a_piece_of_the_answer(run: Run) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.told(b"\xff", block("fertig"), OK | {"result": "fertig"})
    left = run.left()
    assert (left.text, left.origin, left.missing) == ("Vorher Text.\n\nfertig", "transcript", "")


def test_white_space_at_the_end_is_no_difference(run: Run) -> None:
    run.told(block("Guten Tag \n\n"), OK | {"result": "Guten Tag"})
    left = run.left()
    assert (left.text, left.origin, left.missing) == ("Guten Tag \n\n", "output", "")


def test_nor_is_a_byte_order_mark_which_the_cli_trims(run: Run) -> None:
    run.stopped("Guten Tag")
    run.told(block("Guten Tag\ufeff \u2028"), OK | {"result": "Guten Tag\ufeff \u2028"})
    assert run.left().missing == ""


def test_the_file_the_agent_wrote_is_the_answer(run: Run) -> None:
    (run.order.directory / "output" / "response.md").write_text("Aus der Datei\n")
    run.told(block("Fertig."), OK | {"result": "Fertig."})
    assert (run.left().text, run.left().origin) == ("Aus der Datei", "file")


def test_a_transcript_elsewhere_of_another_name_or_too_large_is_not_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / f"{SESSION}.jsonl"
    other.write_bytes(transcript("tool"))
    run.stopped("fertig", other)
    assert "not in the run's own HOME" in run.left().missing
    named = run.path.with_name("other.jsonl")
    named.write_bytes(transcript("tool"))
    run.stopped("fertig", named)
    assert "not this run's" in run.left().missing
    run.stopped("fertig")
    run.path.symlink_to(named)
    assert run.left().missing
    run.path.unlink()
    os.mkfifo(run.path)
    assert "no regular file" in run.left().missing
    run.path.unlink()
    run.path.write_bytes(transcript("tool"))
    monkeypatch.setattr(cli_transcript, "MAX_TRANSCRIPT", 100)
    assert "larger than 100 bytes" in run.left().missing


def test_a_base_that_cannot_be_read_proves_nothing(run: Run, tmp_path: Path) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.base = BaseSession(transcript=tmp_path / "gone.jsonl", knows="message")
    assert "No such file" in run.left().missing
    run.base.transcript.write_bytes(transcript("tool"))  # type: ignore[union-attr]
    assert "does not hold this run's prompt" in run.left().missing


# The completion gate over evidence: what is complete, and which lack of evidence makes which verdict.

SUCCESS = {"subtype": "success", "is_error": False, "terminal_reason": "completed"}
MINE = HookMark(run="t.1.1", session="s-1")
GOOD = RunEvidence(
    run="t.1.1", session="s-1", exit_code=0, marks={START: MINE, STOP: MINE, END: MINE}, result=SUCCESS, text="Gut."
)


def failed(**result: Any) -> RunEvidence:
    return replace(GOOD, exit_code=1, result={"subtype": "success", "is_error": True, **result}, marks={START: MINE})


def test_all_the_evidence_makes_a_run_complete() -> None:
    completion = judge_run(GOOD, {"bytes": 3})
    assert completion.verdict is Verdict.COMPLETE
    assert completion.evidence["hooks"] == [START, STOP, END]
    assert completion.evidence["bytes"] == 3


def test_a_lost_standard_output_is_no_harm_and_is_recorded() -> None:
    completion = judge_run(replace(GOOD, result={}))
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
        ({"result": SUCCESS | {"terminal_reason": "aborted_streaming"}}, "aborted_streaming"),
        ({"result": SUCCESS | {"stop_reason": "pause_turn"}}, "stopped before the answer was whole: pause_turn"),
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
    completion = judge_run(replace(GOOD, **change))
    assert (completion.verdict, completion.kind) == (Verdict.INCOMPLETE, None)
    assert reason in completion.reason


def test_a_success_without_any_hook_is_a_matter_of_set_up_and_no_retry() -> None:
    completion = judge_run(replace(GOOD, marks={}))
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
    completion = judge_run(failed(terminal_reason=ending, api_error_status=status, result="API Error"))
    assert completion.kind == kind
    assert completion.busy is (status in {429, 529})


def test_an_error_without_a_status_passes() -> None:
    assert judge_run(failed(terminal_reason="api_error", api_error_status=None, result="x")).kind is ErrorKind.TRANSIENT


@pytest.mark.parametrize(
    ("error", "ending"), [("max_output_tokens", "api_error"), ("", "prompt_too_long"), ("max_output_tokens", "x")]
)
def test_an_answer_or_a_question_too_long_for_the_model_is_a_limit(error: str, ending: str) -> None:
    assert judge_run(replace(failed(terminal_reason=ending, result="too long"), error=error)).kind is ErrorKind.LIMIT


def test_a_folder_that_takes_no_marks_is_the_machine_s_fault_and_is_named() -> None:
    full = replace(GOOD, marks={}, unwritable="[Errno 28] No space left on device")
    completion = judge_run(full)
    assert completion.kind is ErrorKind.HOST
    assert completion.reason == "the run's folder cannot be written: [Errno 28] No space left on device"
    assert judge_run(replace(full, marks={START: MINE}, exit_code=1)).kind is ErrorKind.HOST


@pytest.mark.parametrize(
    ("error", "kind", "busy"),
    [("rate_limit", "transient", True), ("server_error", "transient", False), ("invalid_request", "permanent", False),
     ("authentication_failed", "config", False), ("max_output_tokens", "limit", False), ("something", None, False)],
)  # fmt: skip
def test_an_error_whose_result_was_lost_is_known_from_its_hook(error: str, kind: str | None, busy: bool) -> None:
    marks = {START: MINE, STOP_FAILURE: replace(MINE, error=error, message="API Error"), END: MINE}
    completion = judge_run(replace(GOOD, exit_code=1, result={}, marks=marks, text=""))
    assert (completion.kind, completion.busy) == (kind, busy)
    assert kind is None or completion.reason == "API Error"
    assert kind or completion.verdict is Verdict.INCOMPLETE
    foreign = {**marks, STOP_FAILURE: replace(marks[STOP_FAILURE], run="t.1.2")}
    assert judge_run(replace(GOOD, exit_code=1, result={}, marks=foreign, text="")).verdict is Verdict.INCOMPLETE


JARGON = '[claude-code:unrecognized_model] {"model": "claude-x"}'


def test_what_the_cli_writes_for_other_programs_reaches_no_reason() -> None:
    completion = judge_run(replace(failed(terminal_reason="api_error", result="API Error: 400"), stderr=JARGON))
    assert completion.reason == "API Error: 400"
    silent = failed(terminal_reason="api_error", api_error_status=400)
    assert judge_run(replace(silent, stderr=f"{JARGON}\nno such model\n{JARGON}")).reason == "no such model"
    assert "unrecognized_model" not in judge_run(replace(silent, stderr=JARGON)).reason
    refused = replace(GOOD, exit_code=1, result={}, marks={}, text="", stderr=f"{JARGON}\nerror: unknown option '--x'")
    assert judge_run(refused).reason == "error: unknown option '--x'"


@pytest.mark.parametrize(
    ("error", "said", "kind"),
    [("authentication_failed", "x", "config"), ("", "Not logged in · Please run /login", "config"),
     ("invalid_request", "x", "permanent"), ("unknown", "socket hang up", "transient")],
)  # fmt: skip
def test_an_error_without_a_status_goes_by_what_the_cli_says(error: str, said: str, kind: str) -> None:
    assert judge_run(replace(failed(terminal_reason="api_error", result=said), error=error)).kind == kind


def test_the_wish_to_wait_goes_with_passing_errors_only() -> None:
    busy = replace(failed(terminal_reason="api_error", api_error_status=429), retry_after=7.0)
    assert judge_run(busy).retry_after == 7.0
    assert judge_run(replace(busy, result={**busy.result, "api_error_status": 400})).retry_after == 0.0


@pytest.mark.parametrize(
    ("said", "status", "error"),
    [
        ("Credit balance is too low", 400, ""),
        ('API Error: 400 {"error": {"message": "Your credit balance is too low to access the API."}}', "400", ""),
        ("API Error: 402 Payment required", 402, ""),
        ("API Error: 429 insufficient_quota", 429, ""),
        ("Credit balance is too low", None, "billing_error"),
        ("x", None, "billing_error"),
    ],
)
def test_an_account_without_credit_is_told_apart_and_asked_no_more(said: str, status: object, error: str) -> None:
    ended = failed(terminal_reason="api_error", api_error_status=status, result=said)
    completion = judge_run(replace(ended, error=error))
    assert (completion.out_of_credit, completion.busy) == (True, False)
    assert "{" not in completion.reason


@pytest.mark.parametrize("subtype", ["error_max_turns", "error_max_budget_usd"])
def test_a_limit_of_the_agent_is_a_limit(subtype: str) -> None:
    assert judge_run(failed(subtype=subtype)).kind is ErrorKind.LIMIT


def test_a_session_that_is_gone_is_told_apart() -> None:
    gone = failed(subtype="error_during_execution", errors=["No conversation found with session ID: x"])
    assert judge_run(replace(gone, text="", marks={END: MINE})).kind is ErrorKind.SESSION_LOST


def test_an_answer_may_talk_about_lost_conversations() -> None:
    talking = replace(GOOD, text="No conversation found", result=SUCCESS | {"result": "No conversation found"})
    assert judge_run(talking).verdict is Verdict.COMPLETE


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [("error: unknown option '--x'", "config"), ("cannot be used with root/sudo privileges", "config"),
     ("Error: Session ID 1 is already in use.", "transient"), ("panic", None)],
)  # fmt: skip
def test_a_start_that_was_refused_goes_by_its_complaint(stderr: str, kind: str | None) -> None:
    refused = replace(GOOD, exit_code=1, result={}, marks={}, text="", stderr=stderr)
    completion = judge_run(refused)
    assert completion.kind == kind
    assert kind or completion.verdict is Verdict.INCOMPLETE


MARKS = st.builds(HookMark, run=st.sampled_from(["t.1.1", "t.1.2", ""]), session=st.sampled_from(["s-1", "s-2"]),
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
        RunEvidence,
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
def test_nothing_but_the_whole_evidence_is_ever_complete(evidence: RunEvidence) -> None:
    if judge_run(evidence).verdict is Verdict.COMPLETE:
        assert evidence.exit_code == 0
        assert {START, STOP, END} <= set(evidence.own_events)
        assert STOP_FAILURE not in evidence.marks
        assert not evidence.result or (not evidence.result["is_error"] and evidence.result["subtype"] == "success")
        assert evidence.text.strip()
        assert not evidence.missing
        assert (evidence.result.get("stop_reason") or evidence.stop_reason) in {"", None, "end_turn"}
        assert not evidence.marks[STOP].background


def test_a_refusal_that_the_provider_reports_is_a_verdict_of_its_own() -> None:
    for refused in (
        replace(GOOD, result=SUCCESS | {"stop_reason": "refusal"}),
        replace(GOOD, result={}, stop_reason="refusal"),
    ):
        completion = judge_run(refused)
        assert (completion.verdict, completion.why) == (Verdict.REFUSED, IncompleteReason.REFUSED)
        assert "the model refused" in completion.reason


def told(*events: dict[str, Any]) -> EventReader:
    transcript = EventReader()
    for event in events:
        transcript.collect_event(event)
    return transcript


SAID = {"event": "output", "text": "x"}
RESULT = {"event": "result"}


@pytest.mark.parametrize(
    ("events", "code", "verdict"),
    [
        ([SAID, RESULT], 0, "complete"),
        ([SAID], 0, "incomplete"),
        ([RESULT], 0, "incomplete"),
        ([SAID, RESULT], 1, "incomplete"),
        ([SAID, RESULT], -9, "incomplete"),
        ([SAID, RESULT], None, "incomplete"),
        ([SAID, {"event": "reset"}, RESULT], 0, "incomplete"),
    ],
)
def test_complete_takes_exit_code_zero_and_a_result_and_a_text(
    events: list[dict[str, Any]], code: int | None, verdict: str
) -> None:
    assert judge_transcript(told(*events), code, {}).verdict == verdict


def test_the_verdict_carries_its_evidence() -> None:
    completion = judge_transcript(told(SAID), -9, {"bytes": 3})
    assert completion.reason == "the agent was killed by signal 9"
    assert completion.evidence == {"bytes": 3, "exit_code": -9, "result": False, "skipped_lines": 0}


@pytest.mark.parametrize("line", [b"\xff\xfe", b"not json", b"[1]", b"3", b'"x"', b"{", b'{"event": "odd"}', b"{}"])
def test_a_line_that_means_nothing_is_skipped_and_counted(line: bytes) -> None:
    transcript = EventReader()
    assert transcript.take_line(line) == []
    assert (transcript.skipped, transcript.text) == (1, "")


def test_deep_nesting_is_skipped_like_any_other_nonsense() -> None:
    transcript = EventReader()
    assert transcript.take_line(b"[" * 200_000) == []
    assert transcript.skipped == 1


def test_a_lone_surrogate_does_not_get_into_the_answer() -> None:
    transcript = EventReader()
    transcript.take_line(b'{"event": "output", "text": "a\\ud800b"}')
    assert transcript.text == "a?b"


@given(
    st.dictionaries(
        st.sampled_from(["event", "text", "kind", "usage", "detail", "retry_after"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text()
            | st.sampled_from(["output", "result", "error", "usage", "reset", "tool", "transient"]),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_whatever_an_agent_tells_there_is_a_verdict(event: dict[str, Any]) -> None:
    transcript = EventReader()
    transcript.take_line(json.dumps(event).encode())
    assert judge_transcript(transcript, 0, {}).verdict in Verdict


def test_an_answer_has_a_limit() -> None:
    transcript = told({"event": "output", "text": "x" * MAX_ANSWER})
    with pytest.raises(AnswerTooLong):
        transcript.collect_event(SAID)


def test_what_was_taken_back_does_not_count_towards_the_limit() -> None:
    long = {"event": "output", "text": "x" * MAX_ANSWER}
    assert len(told(long, {"event": "reset"}, long).text) == MAX_ANSWER


def test_an_error_outweighs_everything_else() -> None:
    completion = judge_transcript(told(SAID, RESULT, {"event": "error", "kind": "transient", "retry_after": 3}), 0, {})
    assert (completion.kind, completion.retry_after) == (ErrorKind.TRANSIENT, 3.0)

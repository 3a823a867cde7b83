"""A turn's events as lines of a terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.events import Event
from api_client.contract.issue import read_issues
from tests.event_table import KINDS
from worker.cli.output import fit_line, strip_control
from worker.cli.turns.timeline import BAD, GOOD, WARN, Timeline, describe_event, format_issues
from worker.cli.turns.turn import _format_attempt, _format_texts


def event(kind: str, seq: int = 1, **data: object) -> Event:
    return Event(seq=seq, epoch="abc", at=1_700_000_000.0, kind=kind, data=data)


ISSUE = {
    "code": "MISSING_STEP_MARKER",
    "message": "The answer has no step marker",
    "fix_hint": "End with <!-- STEP: design -->",
    "severity": "error",
    "validator": "step_marker",
}


LOST = "attempt 1: worker lost in delivery 1, its draft is taken back"
STOPPED = "attempt 1: handed over: its worker was stopped, its draft is taken back"
ASKED = "asking again in 0.5 s: attempt 2/3 (reason: rejected)"
RETRYING = {"attempt": 2, "max_attempts": 3, "reason": "rejected", "delay_seconds": 0.5}
MENDED = {"attempt": 3, "changes": ["marker added"], "step": "design", "step_source": "inferred"}
FAILED = {"attempts": 3, "deliveries": 4, "error": {"message": "It failed:\n- A"}}
REFUSED = ["MISSING_STEP_MARKER  The answer has no step marker  (step_marker)", "  -> End with <!-- STEP: design -->"]


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (event("turn.queued", position=0), ["queued"]),
        (event("turn.queued", position=2), ["queued, 2 turns of this session before it"]),
        (
            event("attempt.started", attempt=2, delivery=3, max_attempts=3, worker="w1"),
            ["attempt 2/3 started on w1, delivery 3"],
        ),
        (
            event("attempt.completed", attempt=1, verdict="incomplete", reason="it died"),
            ["attempt 1 incomplete: it died"],
        ),
        (event("attempt.accepted", attempt=1, issues=[]), ["attempt 1 accepted"]),
        (event("attempt.rejected", attempt=1, issues=[ISSUE]), ["attempt 1 rejected", *REFUSED]),
        (event("attempt.lost", attempt=1, delivery=1, during="running"), [LOST]),
        (event("attempt.lost", attempt=1, delivery=1, during="shutdown"), [STOPPED]),
        (event("turn.retrying", **RETRYING), [ASKED]),
        (event("log.reset", reason="it was lost"), ["from the start again: it was lost"]),
        (event("turn.fallback", attempt=3, codes=["A", "B"]), ["fallback on the best answer: A, B"]),
        (event("turn.mended", **MENDED), ["fallback changed the answer, step design (inferred)", "marker added"]),
        (
            event("turn.finished", outcome="failed", success=False, **FAILED),
            ["failed  (3 attempts, 4 deliveries)", "It failed:", "- A"],
        ),
        (
            event("turn.finished", outcome="passed", success=True, attempts=1, deliveries=1, error={}),
            ["passed  (1 attempt, 1 delivery)"],
        ),
    ],
)
def test_each_event_says_what_happened(told: Event, lines: list[str]) -> None:
    assert [line.text for line in describe_event(told)] == lines


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_with_no_data_at_all_is_still_shown(kind: str) -> None:
    assert bool(describe_event(event(kind))) == (kind != "attempt.output")


def test_an_unknown_kind_is_passed_over() -> None:
    assert describe_event(event("turn.dreamt", anything=1)) == []


def test_good_is_green_and_bad_is_red() -> None:
    assert describe_event(event("attempt.accepted", attempt=1))[0].style == GOOD
    assert describe_event(event("attempt.rejected", attempt=1))[0].style == BAD
    assert format_issues(read_issues([ISSUE | {"severity": "warning"}]))[0].style == WARN


def shown(timeline_events: list[Event], *, tty: bool = False) -> str:
    stream = io.StringIO()
    stream.isatty = lambda: tty  # type: ignore[method-assign]
    timeline = Timeline(stream)
    for each in timeline_events:
        timeline.show_event(each)
    return stream.getvalue()


EVENTS = [
    event("attempt.started", 4, attempt=1, max_attempts=3, delivery=1),
    event("attempt.output", 5, attempt=1, text="hello"),
    event("attempt.output", 6, attempt=1, text=" world"),
    event("attempt.rejected", 7, attempt=1, issues=[ISSUE]),
]


def test_a_pipe_gets_plain_lines_with_their_numbers() -> None:
    lines = shown(EVENTS).splitlines()
    assert len(lines) == 4  # pieces of the answer are none
    assert lines[0][8:] == "  #4   attempt 1/3 started, delivery 1"
    assert lines[2].startswith(" " * 15 + "MISSING_STEP_MARKER")
    assert "\x1b" not in shown(EVENTS)


def test_a_terminal_gets_colours_and_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = shown(EVENTS, tty=True)
    assert "\x1b[31m" in text
    assert ", 11 characters\r\x1b[K" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31m" not in shown(EVENTS, tty=True)


ANY = st.text() | st.sampled_from(["\x1b[2J", "\x9b31m", "\u202eevil", "a\rb", "\x07"])


@given(ANY, ANY)
def test_what_an_agent_writes_never_drives_the_terminal(one: str, two: str) -> None:
    events = [
        event("attempt.tool", name=one, detail=two),
        event("attempt.note", text=one),
        event("attempt.rejected", attempt=1, issues=[{"code": one, "message": two, "fix_hint": one}]),
        event("turn.finished", outcome="failed", error={"message": two}),
    ]
    text = shown(events)
    assert not set(text) & {"\x1b", "\x9b", "\x07", "\r", "\x00", "\u202e", "\u2066"}


def test_a_line_stays_one_line_and_has_an_end() -> None:
    assert fit_line("a\n b\t c") == "a b c"
    assert fit_line("x" * 300) == "x" * 199 + "…"
    assert strip_control("a\r\nb\tc\n") == "a\nb\tc\n"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"file": "add.py", "line": 3}, "PYTHON_SYNTAX  add.py:3: invalid syntax"),
        ({"file": "add.py", "line": None}, "PYTHON_SYNTAX  add.py: invalid syntax"),
        ({"file": "add.py", "message": "missing: add.py"}, "PYTHON_SYNTAX  missing: add.py"),
        ({}, "PYTHON_SYNTAX  invalid syntax"),
    ],
)
def test_an_issue_in_a_file_says_where(place: dict[str, object], said: str) -> None:
    [line] = format_issues(read_issues([{"code": "PYTHON_SYNTAX", "message": "invalid syntax", **place}]))
    assert line.text == said


def test_what_a_gate_found_is_not_told_again_by_the_rejection_and_is_by_the_next_attempt() -> None:
    stream = io.StringIO()
    timeline = Timeline(stream)
    other = {**ISSUE, "code": "NOT_VERIFIED"}
    for attempt in (1, 2):
        timeline.show_event(event("attempt.started", attempt=attempt))
        timeline.show_event(event("gate.checked", gate="g", passed=False, issues=[ISSUE]))
        timeline.show_event(event("attempt.rejected", attempt=attempt, issues=[ISSUE, other]))
        timeline.show_event(event("turn.escalated", stage=2, issues=[ISSUE, other]))
    assert stream.getvalue().count("MISSING_STEP_MARKER") == 2
    assert stream.getvalue().count("NOT_VERIFIED") == 2


def test_an_attempt_without_an_answer_shows_what_its_agent_said_last_on_standard_error() -> None:
    said = "Traceback ...\n  File agents.py, line 4\nRuntimeError: \x1b[31mboom\n"
    ended = {"verdict": "incomplete", "reason": "exit code 1", "evidence": {"stderr": said}}
    lines = [line.text for line in _format_attempt(AttemptRecord(number=1, completion=ended))]
    assert "  said last   RuntimeError: [31mboom" in lines
    full = [line.text for line in _format_texts(AttemptRecord(number=1, completion=ended))]
    assert full[-3:] == ["  | Traceback ...", "  |   File agents.py, line 4", "  | RuntimeError: [31mboom"]

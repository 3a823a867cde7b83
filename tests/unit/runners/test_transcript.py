from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runners.base import ErrorKind, Verdict
from worker.runners.transcript import MAX_ANSWER, AnswerTooLong, Transcript, judge


def told(*events: dict[str, Any]) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.take(event)
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
    assert judge(told(*events), code, {}).verdict == verdict


def test_the_verdict_carries_its_evidence() -> None:
    completion = judge(told(SAID), -9, {"bytes": 3})
    assert completion.reason == "the agent was killed by signal 9"
    assert completion.evidence == {"bytes": 3, "exit_code": -9, "result": False, "skipped_lines": 0}


@pytest.mark.parametrize("line", [b"\xff\xfe", b"not json", b"[1]", b"3", b'"x"', b"{", b'{"event": "odd"}', b"{}"])
def test_a_line_that_means_nothing_is_skipped_and_counted(line: bytes) -> None:
    transcript = Transcript()
    assert transcript.take_line(line) == []
    assert (transcript.skipped, transcript.text) == (1, "")


def test_deep_nesting_is_skipped_like_any_other_nonsense() -> None:
    transcript = Transcript()
    assert transcript.take_line(b"[" * 200_000) == []
    assert transcript.skipped == 1


def test_a_lone_surrogate_does_not_get_into_the_answer() -> None:
    transcript = Transcript()
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
    transcript = Transcript()
    transcript.take_line(json.dumps(event).encode())
    assert judge(transcript, 0, {}).verdict in Verdict


def test_an_answer_has_a_limit() -> None:
    transcript = told({"event": "output", "text": "x" * MAX_ANSWER})
    with pytest.raises(AnswerTooLong):
        transcript.take(SAID)


def test_what_was_taken_back_does_not_count_towards_the_limit() -> None:
    long = {"event": "output", "text": "x" * MAX_ANSWER}
    assert len(told(long, {"event": "reset"}, long).text) == MAX_ANSWER


def test_an_error_outweighs_everything_else() -> None:
    completion = judge(told(SAID, RESULT, {"event": "error", "kind": "transient", "retry_after": 3}), 0, {})
    assert (completion.kind, completion.retry_after) == (ErrorKind.TRANSIENT, 3.0)

"""What the proxy saw decides: an end is complete only where the run's deciding model call ended well."""

from typing import Any

import pytest

from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, ProviderFault, Verdict
from worker.runners.observed_calls import (
    MOST_RECORDED,
    ModelCall,
    ModelCallEnd,
    ObservedCalls,
    check_observed_calls,
    clean_word,
    find_objection,
)

_COMPLETE = Completion(verdict=Verdict.COMPLETE, reason="the agent says so")
_BROKE_OFF = Completion(verdict=Verdict.INCOMPLETE, why=IncompleteReason.BROKE_OFF, reason="exit code 1")


def call(end: ModelCallEnd, **more: Any) -> ModelCall:
    return ModelCall(**({"api": "messages", "status": 200, "end": end, "tools": True} | more))


def seen(*calls: ModelCall) -> ObservedCalls:
    return ObservedCalls(calls=calls)


@pytest.mark.parametrize(
    ("last", "verdict", "kind"),
    [
        (call(ModelCallEnd.WELL), Verdict.COMPLETE, None),
        (call(ModelCallEnd.TOOL), Verdict.INCOMPLETE, None),
        (call(ModelCallEnd.LIMIT, word="length"), Verdict.ERROR, ErrorKind.LIMIT),
        (call(ModelCallEnd.REFUSED), Verdict.REFUSED, None),
        (call(ModelCallEnd.PAUSED), Verdict.INCOMPLETE, None),
        (call(ModelCallEnd.CUT), Verdict.INCOMPLETE, None),
        (call(ModelCallEnd.UNKNOWN, word="odd"), Verdict.INCOMPLETE, None),
        (call(ModelCallEnd.ERROR, status=429, retry_after=7.0), Verdict.ERROR, ErrorKind.TRANSIENT),
        (call(ModelCallEnd.ERROR, status=500), Verdict.ERROR, ErrorKind.TRANSIENT),
        (call(ModelCallEnd.ERROR, status=200), Verdict.ERROR, ErrorKind.TRANSIENT),
        (call(ModelCallEnd.ERROR, status=401), Verdict.ERROR, ErrorKind.PERMANENT),
    ],
    ids=lambda value: f"{value.end} {value.status}" if isinstance(value, ModelCall) else None,
)
def test_an_end_is_complete_only_where_the_last_call_ended_well(
    last: ModelCall, verdict: Verdict, kind: ErrorKind | None
) -> None:
    ruled = check_observed_calls(_COMPLETE, seen(call(ModelCallEnd.TOOL), last))
    assert (ruled.verdict, ruled.kind) == (verdict, kind)
    assert (ruled.retry_after, ruled.busy) == ((7.0, True) if last.status == 429 else (0.0, False))
    assert (ruled is _COMPLETE) == (verdict is Verdict.COMPLETE)
    assert ruled.why is {Verdict.INCOMPLETE: IncompleteReason.BROKE_OFF, Verdict.REFUSED: IncompleteReason.REFUSED}.get(
        verdict
    )


def test_an_end_that_broke_off_gets_the_kind_that_its_provider_gave_it() -> None:
    ruled = check_observed_calls(_BROKE_OFF, seen(call(ModelCallEnd.ERROR, status=529)))
    assert (ruled.verdict, ruled.kind, ruled.busy) == (Verdict.ERROR, ErrorKind.TRANSIENT, True)
    assert ruled.reason == "exit code 1; its last model call failed: HTTP 529"
    assert check_observed_calls(_BROKE_OFF, seen(call(ModelCallEnd.WELL))) is _BROKE_OFF
    killed = Completion(verdict=Verdict.INCOMPLETE, why=IncompleteReason.KILLED, reason="signal 9")
    assert check_observed_calls(killed, seen(call(ModelCallEnd.ERROR, status=429))) is killed


def test_a_failed_call_that_was_tried_again_and_ended_well_does_not_count() -> None:
    calls = [
        call(ModelCallEnd.ERROR, status=500),
        call(ModelCallEnd.CUT),
        call(ModelCallEnd.LIMIT),
        call(ModelCallEnd.WELL),
    ]
    assert find_objection(seen(*calls)) == ""


def test_a_title_or_a_summary_beside_the_agents_loop_does_not_decide() -> None:
    title = call(ModelCallEnd.LIMIT, tools=False, model="small")
    assert find_objection(seen(call(ModelCallEnd.WELL), title)) == ""
    assert find_objection(seen(title, call(ModelCallEnd.LIMIT), call(ModelCallEnd.WELL, tools=False))) != ""
    assert find_objection(seen(call(ModelCallEnd.WELL, tools=False), title)) != "", (
        "without any tools the last one decides"
    )


def test_an_agent_that_passed_the_door_by_is_not_certifiable_and_believed_only_where_nobody_requires_more() -> None:
    assert check_observed_calls(_COMPLETE, seen()) is _COMPLETE
    assert check_observed_calls(_COMPLETE, None) is _COMPLETE
    assert check_observed_calls(_COMPLETE, seen(), required=True).verdict is Verdict.INCOMPLETE
    assert seen().deciding_call is None
    assert "not certifiable" in seen().to_dict()["summary"]


def test_the_record_is_short_and_counts_what_it_leaves_out() -> None:
    many = [call(ModelCallEnd.TOOL, input_tokens=2, output_tokens=1)] * 100
    record = ObservedCalls(calls=many, left_out=7).to_dict()
    assert (record["calls"], record["ends"], record["input_tokens"]) == (107, {"tool": 100}, 200)
    assert len(record["last"]) == MOST_RECORDED
    assert record["decided"]["end"] == "tool"


def test_of_a_providers_word_only_harmless_characters_are_kept() -> None:
    assert clean_word("max_output_tokens") == "max_output_tokens"
    assert clean_word("<b>secret prompt</b>\n" * 20) == " ".join(["b secret prompt b"] * 20)[:64]
    assert clean_word({"type": "x"}) == ""


@pytest.mark.parametrize("said", [0.0, 7.0, 90_000.0])
def test_an_error_that_passes_waits_as_long_as_its_service_asked(said: float) -> None:
    """The CLI's output names its own delay, not the header (look4-agents B8)."""
    limited = Completion(
        verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason="429", retry_after=said, fault=ProviderFault.LIMIT
    )
    ruled = check_observed_calls(limited, seen(call(ModelCallEnd.ERROR, status=429, retry_after=36_000.0)))
    assert (ruled.kind, ruled.busy, ruled.retry_after) == (ErrorKind.TRANSIENT, True, max(said, 36_000.0))
    assert check_observed_calls(limited, seen(call(ModelCallEnd.WELL))) is limited
    assert check_observed_calls(limited, None) is limited


@pytest.mark.parametrize("ended", [_COMPLETE, _BROKE_OFF])
@pytest.mark.parametrize("status", [400, 402, 429])
def test_an_account_without_money_is_known_by_the_providers_word(ended: Completion, status: int) -> None:
    limited = Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason="x")
    for completion in (ended, limited):
        ruled = check_observed_calls(
            completion, seen(call(ModelCallEnd.ERROR, status=status, word="insufficient_quota", retry_after=9.0))
        )
        assert (ruled.out_of_credit, ruled.busy, ruled.retry_after) == (True, False, 0.0)


def test_an_agent_that_waits_in_silence_for_its_service_says_so() -> None:
    """It was ended for its silence: the reason is the limit that the proxy saw (look4-agents C2)."""
    idle = Completion(verdict=Verdict.INCOMPLETE, why=IncompleteReason.IDLE, reason="the agent was silent for 45 s")
    ruled = check_observed_calls(
        idle, seen(call(ModelCallEnd.ERROR, status=429, word="rate_limit_error", retry_after=36_000.0))
    )
    assert (ruled.kind, ruled.busy, ruled.retry_after) == (ErrorKind.TRANSIENT, True, 36_000.0)
    assert ruled.reason == "the agent was silent for 45 s; its last model call failed: HTTP 429 (rate_limit_error)"
    assert check_observed_calls(idle, seen(call(ModelCallEnd.WELL))) is idle
    assert check_observed_calls(idle, seen(call(ModelCallEnd.CUT))).why is IncompleteReason.IDLE

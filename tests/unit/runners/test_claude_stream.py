"""What the real CLI told, recorded: the text a reader is left with, tools, usage, and lines that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.runners.base import AgentEvent
from worker.runners.claude import cli_stream as claude_stream
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.transcript import AnswerTooLong

RECORDED = Path(__file__).parent / "claude_streams"


def played(name: str) -> tuple[ClaudeStream, list[AgentEvent]]:
    return fed(*(RECORDED / f"{name}.jsonl").read_bytes().splitlines())


def fed(*lines: bytes | dict[str, Any]) -> tuple[ClaudeStream, list[AgentEvent]]:
    stream, events = ClaudeStream(), []
    for line in lines:
        events += stream.take_line(json.dumps(line).encode() if isinstance(line, dict) else line)
    return stream, events


def shown(events: list[AgentEvent]) -> str:
    text = ""
    for event in events:
        text = "" if event.kind == "reset" else text + (event.text if event.kind == "output" else "")
    return text


def delta(text: str) -> dict[str, Any]:
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    return {"type": "stream_event", "event": event}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": text}]}, **more}


START: dict[str, Any] = {"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m2"}}}
OK: dict[str, Any] = {"type": "result", "subtype": "success", "is_error": False}
RETRY: dict[str, Any] = {"type": "system", "subtype": "api_retry", "retry_delay_ms": 3500, "error_status": 529}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("normal", "Guten Tag.\n\n<!-- STEP: done -->"),
        ("tool_use", "Guten Tag.\n\n<!-- STEP: done -->"),
        ("max_tokens", "erster Teil, zweiter Teil"),
        ("cut", "a b c "),
        ("http_429", ""),
        ("unknown_session", ""),
    ],
)
def test_the_text_is_what_the_assistant_said_and_what_a_reader_saw(name: str, text: str) -> None:
    stream, events = played("tool" if name == "tool_use" else name)
    assert (stream.text, shown(events)) == (text, text)


def test_a_stream_that_was_cut_is_taken_back_before_it_comes_again() -> None:
    _, events = played("cut")
    assert [event.kind for event in events].count("reset") == 1


def test_a_killed_run_leaves_its_fragment() -> None:
    stream, _ = played("sigkill")
    assert stream.text.startswith("Das ")
    assert stream.result == {}


def test_the_last_result_counts() -> None:
    stream, _ = played("background")
    assert stream.result["subtype"] == "success"
    assert stream.text.endswith("<!-- STEP: done -->")


def test_tools_are_told_with_what_they_are_about() -> None:
    _, events = played("tool")
    assert [(e.text, e.detail) for e in events if e.kind == "tool"] == [("Write", "output/notes.md")]


def test_errors_of_the_service_are_no_answer() -> None:
    stream, events = played("tool_then_400")
    assert stream.text == ""
    assert stream.result["api_error_status"] == 400
    assert [event.kind for event in events] == ["tool"]


def test_a_retry_of_the_service_is_told() -> None:
    stream, events = played("http_429")
    assert (stream.retries, stream.error) == (1, "rate_limit")
    assert [event.text for event in events if event.kind == "note"] == ["the service is asked again: 429"]


def test_usage_counts_every_message_and_every_result() -> None:
    assert played("tool")[0].usage()["input_tokens"] == 22
    assert played("sigkill")[0].usage() == {"input_tokens": 11, "output_tokens": 7}
    assert played("unknown_session")[0].usage()["cost_usd"] == 0


def test_cached_input_is_input() -> None:
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 5}
    stream, _ = fed({"type": "result", "usage": usage, "total_cost_usd": 0.5})
    assert stream.usage() == {"input_tokens": 111, "output_tokens": 5, "cost_usd": 0.5}


def test_the_cost_of_the_session_before_is_not_counted_again() -> None:
    stream, _ = fed({"type": "result", "usage": {"output_tokens": 1}, "total_cost_usd": 0.5})
    assert stream.usage(0.375)["cost_usd"] == 0.125
    assert stream.usage(0.75)["cost_usd"] == 0.5


def test_text_in_another_message_than_streamed_replaces_it() -> None:
    stream, events = fed(delta("halb"), RETRY, START, said("ganz"))
    assert (stream.text, shown(events), stream.retry_after) == ("ganz", "ganz", 3.5)


def test_what_was_settled_before_a_cut_stays() -> None:
    _, events = fed(delta("eins"), said("eins"), delta(" zw"), START, delta(" zwei"), said(" zwei"))
    assert shown(events) == "eins zwei"


def test_a_block_that_was_streamed_in_part_is_completed() -> None:
    _, events = fed(delta("ha"), said("halb"))
    assert [event.text for event in events] == ["ha", "lb"]


def test_a_subagent_does_not_talk_to_the_user() -> None:
    stream, events = fed(said("innen", parent_tool_use_id="t"))
    assert (stream.text, events) == ("", [])


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"type": "stream_event", "event": 3}',
     b'{"type": "assistant", "message": {"content": "x"}}', b'{"type": "result", "usage": [], "total_cost_usd": "x"}',
     b'{"type": "user", "message": null}', b'{"type": "system", "subtype": "api_retry", "retry_delay_ms": "x"}'],
)  # fmt: skip
def test_a_strange_line_breaks_nothing(line: bytes) -> None:
    stream, _ = fed(line, said("gut"))
    assert stream.text.endswith("gut")
    stream.usage()


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert fed(b'{"type":"assistant","message":{"content":[{"type":"text","text":"\\ud800"}]}}')[0].text == "?"


def test_an_endless_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_stream, "MAX_ANSWER", 10)
    with pytest.raises(AnswerTooLong):
        fed(delta("x" * 6), delta("x" * 6))


def test_the_answer_can_be_replaced_by_a_file() -> None:
    stream, events = fed(delta("Fertig."), said("Fertig."))
    events += stream.replace("Aus der Datei", "the answer is in the file")
    assert (stream.text, shown(events)) == ("Aus der Datei", "Aus der Datei")
    assert stream.replace("Aus der Datei", "x") == []


def test_what_was_seen_already_is_only_completed() -> None:
    stream, events = fed(delta("Guten "))
    events += stream.replace("Guten Tag", "the answer is in the transcript")
    assert [(event.kind, event.text) for event in events] == [("output", "Guten "), ("output", "Tag")]
    assert stream.text == "Guten Tag"


def test_two_results_stand_in_paragraphs() -> None:
    stream, events = fed(said("eins"), OK | {"result": "eins"}, delta("zwei"), said("zwei"), OK | {"result": "zwei"})
    assert (stream.text, shown(events), stream.whole) == ("eins\n\nzwei", "eins\n\nzwei", True)
    assert played("background")[0].text == "Ich warte.\n\nGuten Tag.\n\n<!-- STEP: done -->"


def asked(text: str) -> dict[str, Any]:
    return {"type": "user", "message": {"content": [{"type": "text", "text": text}]}, "isSynthetic": True}


@pytest.mark.parametrize(
    ("between", "text"),
    [
        ("Output token limit hit. Resume directly \u2014 no apology", "einszwei"),
        ("Your response above was cut off mid-stream. Resume directly from where it stops", "einszwei"),
        ("Stop hook feedback: noch einmal", "eins\n\nzwei"),
    ],
)
def test_only_a_message_that_was_cut_goes_on_without_a_gap(between: str, text: str) -> None:
    assert fed(said("eins"), asked(between), said("zwei"))[0].text == text


def test_a_tools_result_makes_a_paragraph_whatever_follows() -> None:
    tool = {"type": "user", "message": {"content": [{"type": "tool_result", "content": "x"}]}}
    assert fed(said("eins"), tool, asked("Resume directly"), said("zwei"))[0].text == "eins\n\nzwei"


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        ([said("ganz"), OK | {"result": "ganz"}], True),
        ([said("ganz \n"), OK | {"result": "ganz"}], True),
        ([said("vorher"), said("ganz"), OK | {"result": "ganz"}], True),
        ([said("ganz"), OK | {"result": ""}], True),
        ([said("ganz")], False),
        ([], False),
        ([delta("ga"), OK | {"result": "ganz"}], False),
        ([said("vorher"), OK | {"result": "ganz"}], False),
        ([said("vorher"), OK | {"result": "ganz"}, said("ganz"), OK | {"result": "ganz"}], False),
        ([b"\xff", said("ganz"), OK | {"result": "ganz"}], False),
    ],
)
def test_a_text_is_whole_when_every_result_was_its_end(lines: list[Any], whole: bool) -> None:
    assert fed(*lines)[0].whole is whole


@pytest.mark.parametrize("name", ["normal", "tool", "max_tokens", "cut"])
def test_what_the_real_cli_told_is_whole_and_no_beginning_of_it_is(name: str) -> None:
    lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines()
    assert fed(*lines)[0].whole
    result = next(number for number, line in enumerate(lines) if json.loads(line)["type"] == "result")
    assert not any(fed(*lines[:cut])[0].whole for cut in range(result + 1))


@pytest.mark.parametrize(("status", "until"), [("rejected", 1795316031.0), ("allowed", 0.0)])
def test_a_subscription_that_is_used_up_says_until_when(status: str, until: float) -> None:
    told = {"type": "rate_limit_event", "rate_limit_info": {"status": status, "resetsAt": 1795316031}}
    assert fed(told)[0].resets_at == until

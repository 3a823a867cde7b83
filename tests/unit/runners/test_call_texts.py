"""What a model call asked and wrote is read alike in all four forms, and found again in an answer by its words."""

import json
from typing import Any

import pytest

from worker.runners.observed_calls import ModelCall, ModelCallEnd, ObservedCalls
from worker.runners.sandbox.call_texts import extract_answer, parse_request
from worker.runners.word_digests import MOST, digest_sequences

_TEXT = "A chapter of some length, which goes on for a while and is cut in the"


def body(form: str, *said: str, rules: str = "Rules.", last: str = "user") -> bytes:
    """A request with these messages, a user's first."""
    roles = [*(("user", "assistant")[n % 2] for n in range(len(said) - 1)), last]
    pairs = list(zip(roles, said, strict=True))
    forms: dict[str, dict[str, Any]] = {
        "messages": {"system": [{"type": "text", "text": rules}], "messages": []},
        "chat": {"messages": [{"role": "system", "content": rules}]},
        "responses": {"instructions": rules, "input": []},
        "gemini": {"systemInstruction": {"parts": [{"text": rules}]}, "contents": []},
    }
    asked = forms[form]
    key = {"gemini": "contents", "responses": "input"}.get(form, "messages")
    name = {"gemini": "parts"}.get(form, "content")
    part = {"cache_control": {"type": "ephemeral"}} if len(said) == 1 else {}
    asked[key] += [{"role": role, name: [{"type": "text", "text": text, **part}]} for role, text in pairs]
    return json.dumps({**asked, "model": f"m{len(said)}", "temperature": len(said)}).encode()


@pytest.mark.parametrize("form", ["messages", "chat", "responses", "gemini"])
def test_a_request_is_repeated_by_the_same_again_and_by_asking_to_go_on(form: str) -> None:
    first = parse_request(body(form, "Write."))
    went_on = (
        body(form, "Write."),
        body(form, "Write.", "half", "Output token limit hit. Resume directly"),
        body(form, "Write.", "half", "Please continue."),
        body(form, "Write.", "half", "Bitte weiter!"),
        body(form, "Write.", "half", last="assistant"),
        body(form, "Write.", "half", "", last="tool"),
    )
    others = (
        body(form, "Write it."),
        body(form, "Write.", rules="Other rules."),
        body(form, "Write.", "half", "Now continue with chapter two."),
        b"not JSON",
        b"[]",
        b"",
    )
    assert [parse_request(each).repeats_request(first) for each in went_on] == [True] * len(went_on)
    assert [parse_request(each).repeats_request(first) for each in others] == [False] * len(others)
    assert not first.repeats_request(parse_request(b"{}"))


def _after_tool(*behind: str, part: str = "I look.") -> bytes:
    """A request of Claude's, whose tool brought a result; ``behind`` stands in the message of that."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "No such tool."}
    used = [{"type": "text", "text": part}, {"type": "tool_use", "id": "t1", "name": "look", "input": {}}]
    said = [("user", "Write."), ("assistant", used), ("user", [result, *({"type": "text", "text": t} for t in behind)])]
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in said]}).encode()


@pytest.mark.parametrize(
    ("behind", "repeats"),
    [
        ((), True),
        (("Output token limit hit. Resume directly \u2014 no apology.",), True),
        (("Please continue.",), True),
        (("A reminder.", "Continue exactly where you left off."), True),
        (("Your response above was stopped by a safety classifier. Do not produce that content again.",), False),
        (("Now write chapter two.",), False),
        (("Resume directly", "Now write chapter two."), False),
    ],
)
def test_claude_asks_on_in_the_message_that_brought_a_tools_result(behind: tuple[str, ...], repeats: bool) -> None:
    first = parse_request(_after_tool())
    assert (
        parse_request(_after_tool(*behind, part="I look. half" if behind else "I look.")).repeats_request(first)
        is repeats
    )


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": _TEXT}}],
        [{"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "No."}}, {"text": _TEXT}],
        [{"choices": [{"delta": {"content": _TEXT[:9]}}]}, {"choices": [{"delta": {"content": _TEXT[9:]}}]}],
        [{"choices": [{"delta": {"reasoning_content": "No.", "content": _TEXT}}]}],
        [{"choices": [{"message": {"content": _TEXT}}]}],
        [{"choices": [{"delta": {"tool_calls": [{"function": {"name": "no", "arguments": _TEXT}}]}}]}],
        [{"type": "response.output_text.delta", "delta": _TEXT}, {"type": "response.output_text.done", "text": _TEXT}],
        [{"type": "response.reasoning_summary_text.delta", "delta": "No."}, {"delta": _TEXT}],
        [{"output": [{"type": "reasoning", "content": "No."}, {"type": "message", "content": [{"text": _TEXT}]}]}],
        [{"candidates": [{"content": {"parts": [{"text": "No.", "thought": True}, {"text": _TEXT}]}}]}],
    ],
)
def test_the_text_that_a_model_wrote_is_read_without_its_thoughts(events: list[dict[str, Any]]) -> None:
    streamed = b"".join(b"event: x\r\ndata: %s\r\n\r\n" % json.dumps(each).encode() for each in events)
    assert extract_answer(streamed + b"data: [DONE]\n\ndata: {torn", streamed=True) == _TEXT
    if len(events) == 1:
        assert extract_answer(json.dumps(events[0]).encode(), streamed=False) == _TEXT


@pytest.mark.parametrize(
    ("text", "answer", "there"),
    [
        (_TEXT, f"# Book\n\n{_TEXT}\n\nNext.", True),
        (_TEXT, _TEXT.upper().replace(" ", "\n> "), True),
        (_TEXT, f"<p>{_TEXT.replace(',', '</p><p>')}re", True),
        (_TEXT, "The chapter of another book goes on for a while and is whole.", False),
        ("Sorry, no", "Chapter 1: Sorry, no more.", True),
        ("Yes", "No.", False),
        ("第一章从这里开始然后", "前言。第一章从这里开始然后第二章。", True),
        ("Das Käsebrot im Straßenverkehr", "Hier: das KÄSEBROT im Strassenverkehr", True),
    ],
)
def test_a_text_is_found_in_an_answer_however_that_was_rendered(text: str, answer: str, there: bool) -> None:
    cut = ModelCall(api="chat", end=ModelCallEnd.LIMIT, digests=digest_sequences(text, cut=True))
    assert (ObservedCalls(calls=[cut]).find_broken(answer, every=False) is cut) is there


def test_digests_are_few_and_hold_no_text() -> None:
    digests = digest_sequences(" ".join(map(str, range(100_000))), cut=False)
    assert len(digests) == MOST
    assert all(len(digest) == 12 for digest in digests)
    assert digest_sequences("... !", cut=True) == ()

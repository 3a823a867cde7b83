"""Responses: what their bodies may ask for, and that their events have the same numbers each time."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from api_client.contract.events import Event
from api_client.contract.step_marker import read_spans
from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.web.routes.response_objects import ResponseEvents, last_number
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with, event, finished, passed
from tests.unit.web.openwebui import Reader

BODY: dict[str, Any] = {"model": "scripted", "input": "Hallo"}
REQUEST = TurnRequest(model="scripted", messages=({"role": "user", "content": "hi"},), session_id="s")


def frames(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n") if line.startswith("data: ")]


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": {"id": "c"}}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools", "unsupported_parameter"),
        ({"stream_mode": "live"}, "stream_mode", "unsupported_parameter"),
        ({"store": False}, "store", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "invalid_value"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "invalid_value"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "invalid_value"),
        ({"include": ["message.output_text.logprobs"]}, "include", "unsupported_parameter"),
        ({"max_output_tokens": 5}, "max_output_tokens", "unsupported_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
        ({"text": 1}, "text", "invalid_type"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 3}, "input", "invalid_value"),
        ({"input": "  "}, "input[0].content", "empty_message"),
        ({"input": [{"role": "assistant", "content": "a"}]}, "input[0].role", "last_message_not_user"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].type", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
            "input[0].content[0]",
            "image_not_read",
        ),
        ({"instructions": 1}, "instructions", "invalid_type"),
        ({"background": "yes"}, "background", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata", "invalid_value"),
        ({"metadata": {"a": "x" * 513}}, "metadata", "invalid_value"),
        ({"model": "gpt-9"}, "model", "model_not_found"),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_name(
    http: httpx2.AsyncClient, turns: FakeTurns, change: dict[str, Any], param: str, code: str
) -> None:
    answer = await http.post("/v1/responses", json={**BODY, **change})
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert turns.submitted == []


async def test_what_asks_for_nothing_or_only_tunes_a_model_is_let_through(
    http: httpx2.AsyncClient, turns: FakeTurns
) -> None:
    nothing = dict.fromkeys(("previous_response_id", "conversation", "prompt", "tools", "text", "metadata"))
    tuning = {"temperature": 0.1, "reasoning": {"effort": "high"}, "text": {"format": {"type": "text"}}, "tools": []}
    for more in (nothing, tuning):
        assert (await http.post("/v1/responses", json={**BODY, **more})).status_code == 200
    assert len(turns.submitted) == 2


async def test_a_conversation_of_items_becomes_the_turns_messages(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    first = (await http.post("/v1/responses", json=BODY)).json()
    items = [
        {"role": "user", "content": "Hallo"},
        *first["output"],  # as clients send it back
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Und?"}]},
    ]
    answer = await http.post(
        "/v1/responses", json={**BODY, "instructions": "Kurz.", "input": items, "metadata": {"a": "b"}}
    )
    assert [(m["role"], m["content"]) for m in turns.submitted[-1].messages] == [
        ("system", "Kurz."),
        ("user", "Hallo"),
        ("assistant", "Hallo."),
        ("user", "Und?"),
    ]
    assert (answer.json()["instructions"], answer.json()["metadata"]) == ("Kurz.", {"a": "b"})


async def test_a_stream_can_be_resumed_behind_each_of_its_events(turns: FakeTurns) -> None:
    async with caller(app_with(turns)) as http:
        whole = frames(await http.post("/v1/responses", json={**BODY, "stream": True}))
        assert [frame["sequence_number"] for frame in whole] == list(range(len(whole)))
        for number in range(len(whole)):
            url = f"/v1/responses/resp_{TURN_ID}?stream=true&starting_after={number}"
            assert frames(await http.get(url)) == whole[number + 1 :]
        beyond = await http.get(f"/v1/responses/resp_{TURN_ID}?stream=true&starting_after={len(whole)}")
        assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "starting_after")


async def test_a_log_that_begins_anew_is_one_response_all_the_same() -> None:
    begun, whole = passed("Hallo.")[:2], passed("Hallo.")
    async with caller(app_with(FakeTurns(whole))) as http:
        once = frames(await http.post("/v1/responses", json={**BODY, "stream": True}))
    async with caller(app_with(FakeTurns([*begun, event(0, "log.reset", reason="lost"), *whole]))) as http:
        found = frames(await http.post("/v1/responses", json={**BODY, "stream": True}))
    said = [[(frame["type"], frame["sequence_number"]) for frame in told] for told in (once, found)]
    assert said[0] == said[1]


@pytest.mark.parametrize("query", ["?starting_after=1", "?stream=true&starting_after=-1", "?stream=maybe"])
async def test_a_query_that_means_nothing_is_refused(http: httpx2.AsyncClient, query: str) -> None:
    answer = await http.get(f"/v1/responses/resp_{TURN_ID}{query}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] in {"stream", "starting_after"}


@pytest.mark.parametrize("name", [TURN_ID, "resp_", "resp_t", f"resp_{TURN_ID}x", "..%2f", f"resp_turn-{'6' * 32}"])
async def test_what_is_no_response_of_the_caller_is_not_found(http: httpx2.AsyncClient, name: str) -> None:
    for answer in (await http.get(f"/v1/responses/{name}"), await http.post(f"/v1/responses/{name}/cancel")):
        assert answer.status_code == 404


async def test_a_background_request_of_a_chat_interface_makes_no_turn(turns: FakeTurns) -> None:
    async with caller(app_with(turns), **{"x-owui-task": "emoji_generation"}) as http:
        answer = await http.post("/v1/responses", json=BODY)
        assert answer.json()["output"][0]["content"][0]["text"] == "💬"
    asked = {**BODY, "input": "Your task is to reflect the speaker's likely facial expression", "stream": True}
    async with caller(app_with(turns)) as http:  # without Open WebUI's headers: by how its prompt begins
        streamed = frames(await http.post("/v1/responses", json=asked))
    assert streamed[-1]["response"]["output"][0]["content"][0]["text"] == "💬"
    assert turns.submitted == []


ends = st.tuples(st.sampled_from(["passed", "failed", "cancelled"]), st.text(max_size=30) | st.just("lang " * 700))


@settings(max_examples=100, deadline=None)
@given(starts=st.integers(0, 2), end=ends, outputs=st.integers(0, 3))
def test_the_number_of_the_last_event_is_known_from_the_turn_alone(
    starts: int, end: tuple[str, str], outputs: int
) -> None:
    outcome, text = end
    kinds = ["turn.queued", *["attempt.started"] * starts, *["attempt.output"] * outputs]
    events = [event(seq, kind, text="x") for seq, kind in enumerate(kinds, 1)]
    sent = ResponseEvents(Turn(turn_id=TURN_ID, epoch="e", state=TurnState.QUEUED, request=REQUEST))
    for item in events:
        sent.render(item)
    turn = Turn(turn_id=TURN_ID, epoch="e", state=TurnState.RUNNING, request=REQUEST, delivery=starts)
    assert sent.last_sent == last_number(turn)
    text = text if outcome == "passed" else ""
    sent.render(finished(len(kinds) + 1, outcome, response=text))
    done = Turn(
        turn_id=TURN_ID,
        epoch="e",
        state=TurnState.FINISHED,
        request=REQUEST,
        delivery=starts,
        outcome=Outcome(outcome),
        response=text,
        markers=read_spans(None, text),
    )
    assert sent.last_sent == last_number(done)


async def test_an_answer_that_was_sent_is_delivered_and_one_that_was_lost_is_owed() -> None:
    headers = {"x-stainless-retry-count": "1"}
    scripts: list[tuple[Any, int]] = [(passed("Gut."), 0), ([event(1, "turn.queued"), ValueError("bug")], 1)]
    for script, owed in scripts:
        turns = FakeTurns(script)
        async with caller(app_with(turns), **headers) as http:
            await http.post("/v1/responses", json={**BODY, "stream": True})
        assert len(turns.open_questions.turns) == owed


async def test_a_page_of_open_webui_sees_progress_over_a_connection_of_this_type() -> None:
    script: list[Event | None] = [
        event(1, "turn.queued", position=0),
        event(2, "attempt.started", attempt=1, delivery=1),
        event(3, "attempt.output", attempt=1, text="ENTWURF"),
        event(4, "attempt.rejected", attempt=1, issues=[]),
        event(5, "turn.retrying", attempt=2, max_attempts=3, reason="rejected", codes=[]),
        finished(6, "passed_after_retry", response="Antwort"),
    ]
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
    async with caller(app_with(FakeTurns(script)), **page) as http:
        answer = await http.post("/v1/responses", json={**BODY, "stream": True})
    sent = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    seen = Reader().read(sent)
    assert (seen.text, seen.completed) == ("Antwort", ["Antwort"])
    assert "ENTWURF" in seen.seen
    assert seen.status[0] == "In der Warteschlange"
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_merged_answers_reach_open_webui_in_the_form_its_view_reads(http: httpx2.AsyncClient) -> None:
    asked = 'You have been provided with a set of responses. Responses from models: """kurz"""\n\n"""die längere"""'
    headers = {"x-owui-task": "moa_response_generation"}
    answer = await http.post("/v1/responses", json={**BODY, "input": asked, "stream": True}, headers=headers)
    *frames, done, _ = answer.text.split("\n\n")
    chunks = [ChatCompletionChunk.model_validate_json(frame.removeprefix("data: ")) for frame in frames]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "die längere"
    assert done == "data: [DONE]"

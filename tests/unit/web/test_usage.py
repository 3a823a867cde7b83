"""What a turn used reaches every client: real numbers over all attempts, zeros otherwise, never null."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response, ResponseUsage

from api_client.contract.events import RESET, Event
from api_client.web.streaming.token_usage import TurnUsage
from tests.unit.web.conftest import caller
from tests.unit.web.fake import EPOCH, FakeTurns, app_with, event, finished, passed

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}


def used(given: int, made: int, cost: float = 0.0) -> dict[str, float]:
    return {"input_tokens": given, "output_tokens": made, "cost_usd": cost}


#: A worker that stopped, a run that broke off, an answer that was rejected, and one that passed.
LONG_WAY: list[Event | None] = [
    event(1, "turn.queued", position=0),
    event(2, "attempt.started", attempt=1, delivery=1),
    event(3, "attempt.lost", attempt=1, delivery=1, usage=used(1, 1)),
    event(4, "attempt.started", attempt=1, delivery=2),
    event(5, "attempt.completed", attempt=1, verdict="incomplete", usage=used(10, 2, 0.25)),
    event(6, "attempt.started", attempt=2, delivery=3),
    event(7, "attempt.completed", attempt=2, verdict="complete", usage=used(100, 20, 0.5)),
    event(8, "attempt.rejected", attempt=2, issues=[]),
    event(9, "attempt.started", attempt=3, delivery=4),
    event(10, "attempt.completed", attempt=3, verdict="complete", usage=used(1000, 200, 1.0)),
    event(11, "attempt.accepted", attempt=3, issues=[]),
    finished(12, "passed_after_retry", response="Antwort"),
]
DETAILS = {"attempts": 3, "failed_tokens": 2 + 12 + 120, "cost_usd": 1.75}


async def post(script: list[Event | None], path: str, body: dict[str, Any]) -> httpx2.Response:
    async with caller(app_with(FakeTurns(script))) as http:
        return await http.post(path, json=body)


async def test_a_completion_says_what_all_attempts_used() -> None:
    answer = (await post(LONG_WAY, "/v1/chat/completions", CHAT)).json()
    usage = CompletionUsage.model_validate(answer["usage"], strict=True)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1111, 223, 1334)
    assert answer["usage"]["turn_details"] == DETAILS


async def test_an_agent_that_reports_nothing_used_zero_and_not_null() -> None:
    answer = (await post(passed("Hallo."), "/v1/chat/completions", CHAT)).json()
    assert CompletionUsage.model_validate(answer["usage"]).model_dump()["total_tokens"] == 0
    assert answer["usage"]["turn_details"] == {"attempts": 1, "failed_tokens": 0, "cost_usd": 0.0}


async def test_a_stream_ends_with_what_was_used_where_it_is_asked_for() -> None:
    for asked, mode in [(True, "validated"), (True, "draft"), (False, "validated")]:
        body = {**CHAT, "stream": True, "stream_mode": mode, "stream_options": {"include_usage": asked}}
        *frames, done, _ = (await post(LONG_WAY, "/v1/chat/completions", body)).text.split("\n\n")
        chunks = [ChatCompletionChunk.model_validate_json(frame.removeprefix("data: ")) for frame in frames]
        assert done == "data: [DONE]"
        assert [chunk.usage is not None for chunk in chunks[-2:]] == [False, asked]
        if asked:
            assert chunks[-1].choices == []
            assert chunks[-1].usage
            assert chunks[-1].usage.total_tokens == 1334


async def test_a_response_says_it_too_however_it_is_read() -> None:
    whole = (await post(LONG_WAY, "/v1/responses", {"model": "scripted", "input": "Hallo"})).json()
    usage = ResponseUsage.model_validate(whole["usage"], strict=True)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1111, 223, 1334)
    assert whole["usage"]["turn_details"] == DETAILS
    streamed = await post(LONG_WAY, "/v1/responses", {"model": "scripted", "input": "Hallo", "stream": True})
    last = json.loads(streamed.text.strip().splitlines()[-1].removeprefix("data: "))
    async with caller(app_with(FakeTurns(LONG_WAY))) as http:
        read = (await http.get(f"/v1/responses/{whole['id']}")).json()
    assert last["response"]["usage"] == read["usage"] == whole["usage"]


async def test_a_response_that_is_not_done_yet_has_numbers_too() -> None:
    body = {"model": "scripted", "input": "Hallo", "background": True}
    answer = (await post(LONG_WAY[:2], "/v1/responses", body)).json()
    usage = Response.model_validate(answer).usage
    assert usage is not None
    assert usage.total_tokens == 0


async def test_a_background_request_costs_nothing() -> None:
    async with caller(app_with(FakeTurns())) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT, headers={"x-owui-task": "title_generation"})
    assert answer.json()["usage"]["total_tokens"] == 0


async def test_stream_options_must_be_an_object() -> None:
    refused = await post(passed("a"), "/v1/chat/completions", {**CHAT, "stream_options": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")


def test_a_log_that_begins_anew_is_not_counted_twice() -> None:
    spent = TurnUsage()
    told = [item for item in LONG_WAY if item]
    again = Event(seq=0, epoch=EPOCH, at=1, kind=RESET, data={})
    for item in [*told, again, *told]:
        spent.take(item)
    assert spent.usage()["total_tokens"] == 1334

"""The official client is the referee: it drives a real server, streamed and not, with good turns and bad ones."""

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from api_client.contract.errors import SessionBusy, StoreUnavailable
from tests.integration.conftest import Serve, async_client, sync_client
from tests.support import wait_until
from tests.unit.web.fake import TURN_ID, FakeTurns, event, finished, passed

TRICKY = "Zeile\r\nzwei\n\ndata: [DONE]\n\nU+2028\u2028 U+0085\u0085 VT\x0b FF\x0c Ende 🎉"
HI: Any = [{"role": "user", "content": "Hallo"}]
ISSUES = [{"code": "MISSING_STEP_MARKER", "message": "Response enthält keinen STEP-Marker"}]
FAILED = [event(1, "turn.queued", position=0), None, finished(2, "failed", error={"issues": ISSUES})]


def test_a_streamed_answer_arrives_whole(serve: Serve) -> None:
    with sync_client(serve(FakeTurns(passed(TRICKY)))) as client:
        chunks = list(client.chat.completions.create(model="scripted", messages=HI, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TRICKY
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{TURN_ID}"}


async def test_the_async_client_streams_too_and_the_stream_helper_agrees(serve: Serve) -> None:
    async with (
        async_client(serve(FakeTurns(passed(TRICKY)))) as client,
        client.chat.completions.stream(model="scripted", messages=HI) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == TRICKY


def test_a_whole_answer_names_its_turn(serve: Serve) -> None:
    with sync_client(serve(FakeTurns(passed("Antwort <!-- STEP: what -->")))) as client:
        answer = client.chat.completions.with_raw_response.create(model="scripted", messages=HI)
    assert answer.headers["x-turn-id"] == TURN_ID
    assert answer.parse().choices[0].message.content == "Antwort"
    usage = answer.parse().usage
    assert usage is not None
    assert usage.model_dump()["total_tokens"] == 0


def test_a_stream_says_what_was_used_where_it_is_asked_for(serve: Serve) -> None:
    with sync_client(serve(FakeTurns(passed("Antwort")))) as client:
        *_, last = client.chat.completions.create(
            model="scripted", messages=HI, stream=True, stream_options={"include_usage": True}
        )
    assert last.usage is not None
    assert (last.choices, last.usage.total_tokens) == ([], 0)


def test_models_are_listed(serve: Serve) -> None:
    with sync_client(serve(FakeTurns())) as client:
        assert [model.id for model in client.models.list()] == ["scripted"]
        assert client.models.retrieve("scripted").id == "scripted"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-9")


@pytest.mark.parametrize(
    "script",
    [FAILED, [event(1, "turn.queued"), StoreUnavailable("away")], [event(1, "turn.queued")], [ValueError("bug")]],
    ids=["failed", "store lost", "cut off", "bug"],
)
async def test_an_error_after_the_stream_began_is_an_api_error(serve: Serve, script: Any) -> None:
    url = serve(FakeTurns(script))
    with sync_client(url) as client, pytest.raises(openai.APIError) as caught:
        list(client.chat.completions.create(model="scripted", messages=HI, stream=True))
    assert caught.value.code in {"failed", "stream_lost", "internal_error"}
    async with async_client(url) as client:
        with pytest.raises(openai.APIError) as caught:
            async for _ in await client.chat.completions.create(model="scripted", messages=HI, stream=True):
                pass
    assert "bug" not in str(caught.value)


def test_every_frame_is_a_chunk_an_error_or_the_end(serve: Serve) -> None:
    for script, ends in [(passed(TRICKY), "choices"), (FAILED, "error")]:
        url = serve(FakeTurns(script))
        body = {"model": "scripted", "messages": HI, "stream": True}
        headers = {"x-owui-chat-id": "c", "x-owui-task": ""}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-turn-id"] == TURN_ID
        frames = answer.content.decode().removesuffix("\n\n").split("\n\n")
        assert frames[-1] == "data: [DONE]"
        assert ": ping" in frames
        sent = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1] if frame != ": ping"]
        assert ends in sent[-1]
        for payload in sent:
            if "error" in payload:
                assert "choices" not in payload
                assert payload is sent[-1]
            else:
                ChatCompletionChunk.model_validate(payload, strict=True)
        assert any("event" in payload for payload in sent)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("failed", openai.UnprocessableEntityError),
        ("incomplete", openai.InternalServerError),
        ("error", openai.InternalServerError),
        ("dead", openai.InternalServerError),
        ("expired", openai.InternalServerError),
        ("cancelled", openai.ConflictError),
    ],
)
def test_a_turn_without_an_answer_is_an_error_and_is_not_run_again(
    serve: Serve, outcome: str, expected: type[openai.APIStatusError]
) -> None:
    turns = FakeTurns([finished(1, outcome, error={"message": "Warum."})])
    with sync_client(serve(turns)) as client, pytest.raises(expected) as caught:
        client.chat.completions.create(model="scripted", messages=HI)
    assert caught.value.code == outcome
    assert "Warum." in caught.value.message
    assert caught.value.response.headers["x-turn-id"] == TURN_ID
    assert len(turns.submitted) == 1  # the client repeats 409 and 5xx unless it is told not to


@pytest.mark.parametrize(
    ("refusal", "expected", "code"),
    [
        (StoreUnavailable("away"), openai.InternalServerError, "store_unavailable"),
        (SessionBusy("s", "t"), openai.ConflictError, "session_busy"),
    ],
)
def test_a_refused_submit_is_the_clients_own_error(
    serve: Serve, refusal: Exception, expected: type[openai.APIStatusError], code: str
) -> None:
    turns = FakeTurns()
    turns.refusal = refusal
    with sync_client(serve(turns), max_retries=0) as client, pytest.raises(expected) as caught:
        client.chat.completions.create(model="scripted", messages=HI, stream=True)
    assert caught.value.code == code


def test_bad_requests_are_the_clients_own_errors(serve: Serve) -> None:
    with sync_client(serve(FakeTurns())) as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="scripted", messages=[])
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-9", messages=HI)
        huge: Any = [{"role": "user", "content": "a" * 9 * 2**20}]
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="scripted", messages=huge)
        assert caught.value.status_code == 413
    with sync_client(serve(FakeTurns(), api_keys=("k",))) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_that_leaves_cancels_nothing(serve: Serve, stream: bool) -> None:
    turns = FakeTurns(passed("Antwort"))
    turns.hold = asyncio.Event()
    url = serve(turns)
    body = {"model": "scripted", "messages": HI, "stream": stream}
    async with httpx2.AsyncClient(timeout=60) as client:
        asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body))
        await wait_until(lambda: turns.submitted)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await wait_until(turns.left.is_set)  # nobody waits for it any more
    assert turns.cancelled == 0
    assert len(turns.submitted) == 1


async def test_the_first_words_come_before_the_turn_ends(serve: Serve) -> None:
    turns = FakeTurns(passed("Antwort"))
    turns.hold = asyncio.Event()
    body = {"model": "scripted", "messages": HI, "stream": True}
    async with (
        httpx2.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{serve(turns)}/v1/chat/completions", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert '"role":"assistant"' in await anext(lines)
        assert await anext(lines) == ""
        assert await anext(lines) == ": ping"


def test_a_refusal_reaches_the_client_as_openai_says_it(serve: Serve) -> None:
    said = {"code": "refused", "message": "The model refused the request."}
    script = [event(1, "turn.queued", position=0), None, finished(2, "refused", error=said)]
    turns = FakeTurns(script)
    with sync_client(serve(turns)) as client:
        chunks = list(client.chat.completions.create(model="scripted", messages=HI, stream=True))
        whole = client.chat.completions.create(model="scripted", messages=HI).choices[0]
        goes_on: Any = [*HI, whole.message, *HI]
        client.chat.completions.create(model="scripted", messages=goes_on)
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason == "content_filter"
    assert "".join(chunk.choices[0].delta.refusal or "" for chunk in chunks) == whole.message.refusal == said["message"]
    assert whole.message.content is None
    assert turns.submitted[-1].messages[1] == {"role": "assistant", "content": said["message"]}

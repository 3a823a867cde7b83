"""A rejected answer on the wire: what an OpenAI client can read, with ADR-038's lines in it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

from worker.enforcement import ResponseEnforcer, ValidationIssue
from worker.enforcement.sse import error_object

ISSUES = [
    ValidationIssue("A_CODE", 'erste Zeile\nzweite "Zeile"\r\n\r\ndata: [DONE]', "f"),
    ValidationIssue("B", "m", "f"),
]


async def frames() -> list[str]:
    enforcer = ResponseEnforcer(SimpleNamespace(run_session=None, continue_session=None))
    return [frame async for frame in enforcer.stream_enforcement_error(ISSUES)]


def data_of(frame: str) -> Any:
    assert frame.startswith("data: ")
    assert frame.endswith("\n\n")
    return json.loads(frame[6:-2])


async def test_every_frame_is_one_event_of_json_and_the_last_is_done() -> None:
    *events, done = await frames()
    assert done == "data: [DONE]\n\n"
    for frame in events:
        assert frame.count("\n") == 2
        data_of(frame)


async def test_the_chunks_say_the_adrs_lines() -> None:
    chunks = [data_of(frame) for frame in (await frames())[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if "choices" in c)
    assert text.startswith("[ENFORCEMENT ERROR]\nThe LLM response could not be validated:\n- A_CODE: erste Zeile")
    assert text.endswith("- B: m\nPlease try again or contact the administrator.\n")


async def test_the_error_is_an_object_without_choices() -> None:
    error = data_of((await frames())[-2])
    assert error == {"error": error_object(ISSUES)}
    assert error["error"]["code"] == "A_CODE"
    assert error["error"]["message"] == "The LLM response could not be validated: A_CODE, B"
    assert error_object(ISSUES, "de")["message"] == "Die LLM-Response konnte nicht validiert werden: A_CODE, B"


async def test_the_openai_client_reads_the_lines_and_then_raises_the_error() -> None:
    body = "".join(await frames())

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=body)

    client = openai.OpenAI(
        api_key="k", base_url="http://test/v1", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    )
    stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    seen: list[str] = []

    def read() -> None:
        seen.extend(chunk.choices[0].delta.content or "" for chunk in stream)

    with pytest.raises(openai.APIError, match="could not be validated: A_CODE"):
        read()
    assert "".join(seen).startswith("[ENFORCEMENT ERROR]\n")

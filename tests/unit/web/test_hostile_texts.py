"""Resource exhaustion by text (the class of CVEs that regular expressions and parsers without limits make).

Each text that anybody can send is a mebibyte of the patterns that hurt most. What counts is the processor time of the
event loop's own thread between two looks at it: while it works on one text nobody else is served.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.event_kinds import TurnFinished
from api_client.contract.growing_text import VisibleText
from api_client.contract.step_marker import read_spans, strip_all_markers
from api_client.web.bodies import body
from api_client.web.identity.signed_user import verify_user_token
from api_client.web.openwebui.status import format_proof
from api_client.web.streaming.reply import Reply
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with, finished

MIB = 2**20
HEADER_CHARS = 60_000  # h11 reads no longer heads
#: Linear work on a mebibyte takes some hundredths of a second; what grows with the square takes minutes. How long the
#: loop really stands still is measured by ``python -m tests.lab.bench.hostile``.
MOST_SECONDS = 20.0
JSON_TYPE = {"content-type": "application/json"}
FORM_TYPE = {"content-type": "application/x-www-form-urlencoded"}

PATTERNS = {
    "history": "<chat_history>",
    "history ends": "<chat_history></chat_history>",
    "talk": "USER:\n",
    "quotes": '"""a',
    "quotes and lines": '"""\n\n"""',
    "comments": "<!--",
    "markers": "<!-- STEP: ",
    "marker over lines": "<!--\nSTEP\n",
    "fences": "```",
    "fences in lines": "```\n~~~\n",
    "brackets": "<[({",
    "spaces": " ",
    "lines": "\n",
    "invisible": "\u200b",
    "separators": "\u2028",
    "words": "code python ",
    "percent": "%41",
    "commas": ",&;=",
    "addresses": "https://",
    "stars": "*_#",
    "escapes": "\\\\\\",
    "tokens": "..",
}
TASKS = [
    "title_generation",
    "tags_generation",
    "query_generation",
    "image_prompt_generation",
    "moa_response_generation",
    "follow_up_generation",
]


def long(pattern: str, size: int = MIB) -> str:
    return (pattern * (size // len(pattern) + 1))[:size]


async def longest_stall(work: Awaitable[Any]) -> float:
    """The most processor time, in seconds, that the loop's thread spent between two turns of the loop."""
    longest, last, done = 0.0, time.thread_time(), False

    async def look() -> None:
        nonlocal longest, last
        while not done:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    looking = asyncio.create_task(look())
    try:
        await work
    finally:
        done = True
        await looking
    return longest


def chat(text: str, **more: Any) -> bytes:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(body, ensure_ascii=False).encode()


BODIES: dict[str, Callable[[str], bytes]] = {
    "message": chat,
    "prompt of a title": lambda text: chat("### Task:\nGenerate a concise title" + text[:-30]),
    "prompt of many answers": lambda text: chat(
        "You have been provided with a set of responses Responses from models:" + text[:-80]
    ),
    "parts": lambda text: chat([{"type": "text", "text": text[at : at + 200]} for at in range(0, MIB, 200)]),  # type: ignore[arg-type]
    "many messages": lambda text: json.dumps(
        {
            "model": "scripted",
            "messages": [{"role": "user", "content": text[at : at + 600]} for at in range(0, MIB, 600)],
        }
    ).encode(),
    "model": lambda text: chat("a", model=text),
    "validators": lambda text: chat("a", validators=[text]),
    "policy": lambda text: chat("a", policy={text: [text]}),
    "session_id": lambda text: chat("a", session_id=text),
    "locale": lambda text: chat("a", locale=text),
    "unknown name": lambda text: chat("a", **{text: 1}),
    "escalation": lambda text: chat("a", escalation={"model": text}),
    "instructions": lambda text: chat("a", input=text, instructions=text),
    "metadata": lambda text: chat("a", input="a", metadata={"a": text}),
    "no JSON": lambda text: text.encode(),
}


@pytest.mark.parametrize("field", BODIES)
async def test_no_text_of_a_body_holds_up_the_loop(turns: FakeTurns, field: str) -> None:
    path = "/v1/responses" if field in {"instructions", "metadata"} else "/v1/chat/completions"
    async with caller(app_with(turns)) as http:
        for name, pattern in PATTERNS.items():
            content = BODIES[field](long(pattern))
            stall = await longest_stall(http.post(path, content=content, headers=JSON_TYPE))
            assert stall < MOST_SECONDS, name


@pytest.mark.parametrize("task", TASKS)
async def test_no_background_request_holds_up_the_loop(turns: FakeTurns, task: str) -> None:
    async with caller(app_with(turns)) as http:
        for name, pattern in PATTERNS.items():
            for text in (long(pattern), f"<chat_history>\n{long(pattern, MIB - 40)}\n</chat_history>"):
                asked = http.post("/v1/chat/completions", content=chat(text), headers=JSON_TYPE | {"x-owui-task": task})
                assert await longest_stall(asked) < MOST_SECONDS, name
    assert turns.submitted == []


HEADERS = [
    "authorization",
    "cookie",
    "idempotency-key",
    "last-event-id",
    "traceparent",
    "x-owui-chat-id",
    "x-owui-message-id",
    "x-owui-task",
    "x-openwebui-user-jwt",
    "x-stainless-retry-count",
    "content-type",
    "content-encoding",
    "origin",
]


@pytest.mark.parametrize("name", HEADERS)
async def test_no_header_holds_up_the_loop(turns: FakeTurns, name: str) -> None:
    async with caller(app_with(turns)) as http:
        for pattern in PATTERNS.values():
            text = long(pattern.encode("ascii", "ignore").decode().replace("\n", "") or "a", HEADER_CHARS)
            for asked in (
                http.post("/v1/chat/completions", content=chat("a"), headers=JSON_TYPE | {name: text}),
                http.get(f"/v1/turns/{TURN_ID}/events", headers={name: text}),
                http.get("/turns", headers={name: text}),
            ):
                assert await longest_stall(asked) < MOST_SECONDS, pattern


@pytest.mark.parametrize(
    "address", ["/v1/models/{}", "/v1/turns/{}", "/v1/stats?since={}", "/turns?status={}&{}", "/nothing/{}"]
)
async def test_no_address_holds_up_the_loop(turns: FakeTurns, address: str) -> None:
    async with caller(app_with(turns)) as http:
        for text in ("%41" * 9_000, "&" * 30_000, "a=1&" * 7_000, "." * 30_000, "/" * 30_000):
            asked = http.get(address.replace("{}", text))
            assert await longest_stall(asked) < MOST_SECONDS


@pytest.mark.parametrize("field", ["key", "next", "csrf", "note", "text"])
async def test_no_form_holds_up_the_loop(turns: FakeTurns, field: str) -> None:
    async with caller(app_with(turns)) as http:
        for pattern in PATTERNS.values():
            content = f"{field}={long(pattern)}".encode()
            for path in ("/sign-in", f"/turns/{TURN_ID}/decision"):
                assert await longest_stall(http.post(path, content=content, headers=FORM_TYPE)) < MOST_SECONDS


def test_no_answer_of_an_agent_holds_up_the_loop() -> None:
    repaired = finished(1, "passed_by_fallback").body
    assert isinstance(repaired, TurnFinished)
    reply = Reply(turn_id=TURN_ID, model="scripted", created=0, locale="de", from_open_webui=True)
    for name, pattern in PATTERNS.items():
        text = long(pattern)
        for work in (
            lambda text=text: strip_all_markers(text, read_spans(None, text)),
            lambda text=text: reply.make_completion(text),
            lambda text=text: format_proof(repaired, [text], "de", checked=True),
            lambda text=text: verify_user_token(text[:HEADER_CHARS], "secret"),
        ):
            began = time.thread_time()
            work()  # type: ignore[no-untyped-call]
            assert time.thread_time() - began < MOST_SECONDS, name


def test_no_piece_of_a_growing_answer_holds_up_the_loop() -> None:
    for name, pattern in PATTERNS.items():
        text, visible = long(pattern), VisibleText()
        for at in range(0, MIB, 4096):
            began = time.thread_time()
            visible.feed(text[at : at + 4096])
            assert time.thread_time() - began < MOST_SECONDS, name


async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(http: httpx2.AsyncClient) -> None:
    for values in ("[" + "0," * 4_000_000 + "0]", "[" + "{}," * 2_000_000 + "{}]", "[" * 8_000_000):
        content = f'{{"x":{values}}}'.encode()
        answer = await http.post("/v1/turns", content=content, headers=JSON_TYPE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
        assert "more than 100000 values" in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["," * MIB, '\\",' * 300_000, "\\\\," * 300_000, '[{"a": 1}, ' * 90_000])
async def test_a_text_may_be_full_of_commas_and_brackets(http: httpx2.AsyncClient, turns: FakeTurns, text: str) -> None:
    answer = await http.post("/v1/turns", content=chat(text), headers=JSON_TYPE)
    assert answer.status_code == 202, answer.text
    assert turns.submitted[0].prompt == text


_TEXTS = st.text(alphabet='",[{\\}]:a', max_size=6)
_VALUES = st.recursive(
    st.none() | st.integers(0, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


def beginnings(value: Any) -> int:
    """The opening brackets and commas of a value, outside of its texts."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(beginnings, inner))


@given(_VALUES, st.integers(1, 9))
def test_values_are_counted_outside_of_texts_wherever_the_pieces_end(value: Any, piece_bytes: int) -> None:
    content, exact = json.dumps(value).encode(), beginnings(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "_PIECE_BYTES", piece_bytes)
        patch.setattr(body, "MAX_VALUES", exact)
        assert not body.has_too_many_values(content)
        if exact:
            patch.setattr(body, "MAX_VALUES", exact - 1)
            assert body.has_too_many_values(content)

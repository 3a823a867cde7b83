"""Bad input: the exact status, field and code for each, and nothing submitted."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from api_client.contract.errors import IdempotencyConflict, SessionBusy, StoreUnavailable
from api_client.web.bodies import body
from api_client.web.bodies.body import read_object
from api_client.web.errors import ApiError
from tests.support import wait_until
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with

PLAIN_JSON = {"content-type": "application/json"}
PATHS = ("/v1/chat/completions", "/v1/turns")


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], **more}


def said(content: Any, role: Any = "user") -> dict[str, Any]:
    return chat(messages=[{"role": role, "content": content}])


USER = {"role": "user", "content": "a"}
ASSISTANT = {"role": "assistant", "content": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
AUDIO = {"type": "input_audio"}
FULL = {"role": "user", "content": "a" * 2**20}


def raw(rest: str) -> bytes:
    return b'{"model":"scripted","messages":[{"role":"user","content":"Hallo"}],' + rest.encode() + b"}"


def nested(depth: int) -> bytes:
    return raw('"x":' + "[" * depth + "]" * depth)


FIELDS: list[tuple[str, Any, int, str | None, str]] = [
    ("no messages", {"model": "scripted"}, 400, "messages", "missing_required_parameter"),
    ("empty messages", chat(messages=[]), 400, "messages", "invalid_value"),
    ("messages null", chat(messages=None), 400, "messages", "missing_required_parameter"),
    ("messages a text", chat(messages="hi"), 400, "messages", "invalid_value"),
    ("message a text", chat(messages=["hi"]), 400, "messages[0]", "invalid_type"),
    ("too many messages", chat(messages=[USER] * 2001), 400, "messages", "too_many_messages"),
    ("unknown role", said("a", "robot"), 400, "messages[0].role", "invalid_value"),
    ("role missing", chat(messages=[{"content": "a"}]), 400, "messages[0].role", "invalid_value"),
    ("role a number", said("a", 5), 400, "messages[0].role", "invalid_value"),
    ("role a list", said("a", ["user"]), 400, "messages[0].role", "invalid_value"),
    ("content missing", chat(messages=[{"role": "user"}]), 400, "messages[0].content", "missing_required_parameter"),
    ("content null", said(None), 400, "messages[0].content", "missing_required_parameter"),
    ("content a number", said(5), 400, "messages[0].content", "invalid_type"),
    ("content an object", said({"text": "a"}), 400, "messages[0].content", "invalid_type"),
    ("image", said([IMAGE]), 400, "messages[0].content[0]", "image_not_read"),
    ("audio", said([{"type": "text", "text": "a"}, AUDIO]), 400, "messages[0].content[1]", "unsupported_content"),
    ("type of a part a list", said([{"type": []}]), 400, "messages[0].content[0]", "unsupported_content"),
    ("part a text", said(["a"]), 400, "messages[0].content[0]", "unsupported_content"),
    ("part without text", said([{"type": "text"}]), 400, "messages[0].content[0].text", "invalid_type"),
    ("last an assistant", chat(messages=[USER, ASSISTANT]), 400, "messages[1].role", "last_message_not_user"),
    ("last a system", said("a", "system"), 400, "messages[0].role", "last_message_not_user"),
    ("empty text", said(""), 400, "messages[0].content", "empty_message"),
    ("white space", said(" \n\t\u3000"), 400, "messages[0].content", "empty_message"),
    ("zero width", said("\u200b\u200d\ufeff"), 400, "messages[0].content", "empty_message"),
    ("no parts", said([]), 400, "messages[0].content", "empty_message"),
    ("one content too long", said("a" * (2**20 + 1)), 400, "messages[0].content", "content_too_long"),
    ("all content too long", chat(messages=[FULL] * 5), 400, "messages", "content_too_long"),
    ("model missing", {"messages": chat()["messages"]}, 400, "model", "invalid_value"),
    ("model a number", chat(model=5), 400, "model", "invalid_value"),
    ("model unknown", chat(model="gpt-9"), 404, "model", "model_not_found"),
    ("model in another case", chat(model="Scripted"), 404, "model", "model_not_found"),
    ("model a path", chat(model="../x"), 404, "model", "model_not_found"),
    ("model of 10 kB", chat(model="m" * 10_000), 404, "model", "model_not_found"),
    ("unknown validator", chat(validators=["step_marker", "nope"]), 400, "validators[1]", "unknown_validator"),
    ("validator an object", chat(validators=[{}]), 400, "validators[0]", "unknown_validator"),
    ("validators a text", chat(validators="step_marker"), 400, "validators", "invalid_type"),
    ("n 2", chat(n=2), 400, "n", "invalid_value"),
    ("n 0", chat(n=0), 400, "n", "invalid_value"),
    ("n huge", chat(n=10**9), 400, "n", "invalid_value"),
    ("n 1.0", chat(n=1.0), 400, "n", "invalid_value"),
    ("n true", chat(n=True), 400, "n", "invalid_value"),
    ("stream a text", chat(stream="true"), 400, "stream", "invalid_type"),
    ("stream 1", chat(stream=1), 400, "stream", "invalid_type"),
    ("attempts 0", chat(max_attempts=0), 400, "max_attempts", "invalid_value"),
    ("attempts 1000", chat(max_attempts=1000), 400, "max_attempts", "invalid_value"),
    ("attempts 2.5", chat(max_attempts=2.5), 400, "max_attempts", "invalid_value"),
    ("token budget -1", chat(token_limit=-1), 400, "token_limit", "invalid_value"),
    ("token budget 1.5", chat(token_limit=1.5), 400, "token_limit", "invalid_value"),
    ("cost budget text", chat(cost_limit_usd="5"), 400, "cost_limit_usd", "invalid_value"),
    ("deadline 0", chat(deadline_seconds=0), 400, "deadline_seconds", "invalid_value"),
    ("deadline -1", chat(deadline_seconds=-1), 400, "deadline_seconds", "invalid_value"),
    ("deadline 1e9", chat(deadline_seconds=1e9), 400, "deadline_seconds", "invalid_value"),
    ("deadline a text", chat(deadline_seconds="60"), 400, "deadline_seconds", "invalid_value"),
    ("response_format a text", chat(response_format="text"), 400, "response_format", "invalid_value"),
    ("tools", chat(tools=[{"type": "function"}]), 400, "tools", "unsupported_parameter"),
    ("functions", chat(functions=[{"name": "f"}]), 400, "functions", "unsupported_parameter"),
    ("tool_choice", chat(tool_choice="required"), 400, "tool_choice", "unsupported_parameter"),
    ("stop", chat(stop=["END"]), 400, "stop", "unsupported_parameter"),
    ("max_tokens", chat(max_tokens=100), 400, "max_tokens", "unsupported_parameter"),
    ("most", chat(max_completion_tokens=9), 400, "max_completion_tokens", "unsupported_parameter"),
    ("logprobs", chat(logprobs=True), 400, "logprobs", "unsupported_parameter"),
    ("logit_bias", chat(logit_bias={"50256": -100}), 400, "logit_bias", "unsupported_parameter"),
    ("audio", chat(modalities=["text", "audio"]), 400, "modalities", "unsupported_parameter"),
    ("double_text", chat(double_text="merge"), 400, "double_text", "invalid_value"),
    ("double_text a list", chat(double_text=[]), 400, "double_text", "invalid_value"),
    ("locale", chat(locale="fr"), 400, "locale", "invalid_value"),
    ("session_id empty", chat(session_id=""), 400, "session_id", "invalid_value"),
    ("session_id long", chat(session_id="s" * 256), 400, "session_id", "invalid_value"),
    ("session_id a number", chat(session_id=7), 400, "session_id", "invalid_value"),
]  # fmt: skip

BODIES: list[tuple[str, bytes, int, str | None, str]] = [
    ("nothing", b"", 400, None, "invalid_json"),
    ("null", b"null", 400, None, "invalid_json"),
    ("a list", b"[]", 400, None, "invalid_json"),
    ("a text", b'"x"', 400, None, "invalid_json"),
    ("broken", b"{bad", 400, None, "invalid_json"),
    ("cut off", b'{"model":"scripted","mess', 400, None, "invalid_json"),
    ("two objects", b"{}{}", 400, None, "invalid_json"),
    ("100k lists", b"[" * 100_000, 400, None, "invalid_json"),
    ("65 levels", nested(65), 400, None, "invalid_json"),
    ("5000 digits", raw('"seed":' + "1" * 5000), 400, "seed", "invalid_json"),
    ("NaN", raw('"temperature":NaN'), 400, "temperature", "invalid_json"),
    ("Infinity", raw('"temperature":-Infinity'), 400, "temperature", "invalid_json"),
    ("1e999", raw('"deadline_seconds":1e999'), 400, "deadline_seconds", "invalid_json"),
    ("NaN in a list", raw('"x":{"y":[1,NaN]}'), 400, "x.y[1]", "invalid_json"),
    ("model twice", raw('"model":"other"'), 400, "model", "invalid_json"),
    ("key twice below", raw('"x":{"a":1,"a":1}'), 400, "x.a", "invalid_json"),
    ("invalid UTF-8", b'{"model":"\xff"}', 400, None, "invalid_json"),
    ("UTF-16", json.dumps(chat()).encode("utf-16"), 400, None, "invalid_json"),
    ("UTF-16 without mark", json.dumps(chat()).encode("utf-16-le"), 400, None, "invalid_json"),
    ("half a surrogate", b'{"messages":[{"content":"a\\ud800"}]}', 400, "messages[0].content", "invalid_json"),
    ("half a surrogate as model", b'{"model":"\\udfff"}', 400, "model", "invalid_json"),
    ("half a surrogate in a key", b'{"x":{"\\ud800":1}}', 400, "x", "invalid_json"),
    ("NUL", b'{"messages":[{"role":"user","content":"a\\u0000"}]}', 400, "messages[0].content", "invalid_json"),
    ("a raw control", b'{"model":"a\x01"}', 400, None, "invalid_json"),
]  # fmt: skip


def assert_error(answer: httpx2.Response, status: int, param: str | None, code: str) -> str:
    """The whole error shape; returns the message."""
    assert (answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
        status,
        param,
        code,
    )
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req-")
    assert 0 < len(error["message"]) < 400
    assert error["message"].isprintable()
    return str(error["message"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "status", "param", "code"), [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS]
)
async def test_a_field_that_is_wrong_is_named(
    http: httpx2.AsyncClient, turns: FakeTurns, path: str, body: Any, status: int, param: str | None, code: str
) -> None:
    message = assert_error(await http.post(path, json=body), status, param, code)
    assert param is not None
    assert param.partition("[")[0] in message
    assert turns.submitted == []


async def test_all_problems_of_a_body_are_told_at_once(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    messages = [{"role": "robot", "content": "a"}, {"role": "user", "content": [AUDIO, {"type": "text"}]}]
    body = chat(n=2, stream="yes", messages=messages, validators=["nope", {}], policy={"a": ["x", 1], "b": [2]})
    answer = await http.post(PATHS[0], json=body | {"model": "gpt-9", "response_format": "x"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "policy", "invalid_value")
    fields = ["policy:", "stream:", "n:", "response_format:", 'the model "gpt-9"', "messages[0].role:"]
    fields += ["messages[1].content[0]:", "messages[1].content[1].text:", "validators[0]:", "validators[1]:"]
    assert error["message"].startswith("10 problems: (1) policy: must be an object")
    places = [error["message"].index(f") {field}") for field in fields]
    assert places == sorted(places)
    assert turns.submitted == []
    whole = await http.post("/v1/responses", json={"model": "scripted", "tools": [1], "store": False, "input": [{}]})
    assert whole.json()["error"]["message"].startswith("4 problems: (1) store: ")
    many = await http.post(PATHS[0], json=chat(messages=["hi"] * 30))
    assert many.json()["error"]["message"].endswith('(20) messages[19]: must be an object; got "hi" and 10 more')


async def test_a_user_of_a_chat_reads_all_problems_too(http: httpx2.AsyncClient) -> None:
    messages = [{"role": "user", "content": [IMAGE]}]
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
    answer = await http.post(PATHS[0], json=chat(messages=messages, n=2, locale="de"), headers=page)
    message = answer.json()["error"]["message"]
    assert "(1) n: must be 1" in message
    assert "(2) messages[0].content[0]: This model does not read images." in message


@pytest.mark.parametrize(
    ("body", "status", "param", "code"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES]
)
async def test_json_that_readers_would_not_agree_on_is_refused(
    http: httpx2.AsyncClient, turns: FakeTurns, body: bytes, status: int, param: str | None, code: str
) -> None:
    answer = await http.post(PATHS[0], content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert_error(answer, status, param, code)
    assert turns.submitted == []


async def test_every_message_says_which_field_what_came_and_what_is_allowed(http: httpx2.AsyncClient) -> None:
    """Word for word, in the order of both tables: a message that changes is read again by whoever changes it."""
    said = []
    for name, content in [(row[0], json.dumps(row[1]).encode()) for row in FIELDS] + [row[:2] for row in BODIES]:
        answer = await http.post(PATHS[0], content=content, headers=PLAIN_JSON)
        said.append(f"{name} | {answer.status_code} | {answer.json()['error']['message']}")
    assert said == (Path(__file__).parents[2] / "golden/bad-requests.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("headers", "param", "code"),
    [
        ({"content-type": "text/plain"}, "Content-Type", "unsupported_media_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "Content-Type", "unsupported_media_type"),
        ({}, "Content-Type", "unsupported_media_type"),
        ({"content-type": "application/json; charset=utf-16"}, "Content-Type", "unsupported_media_type"),
        (PLAIN_JSON | {"content-encoding": "gzip"}, "Content-Encoding", "unsupported_content_encoding"),
    ],
)  # fmt: skip
async def test_only_plain_json_is_read(
    http: httpx2.AsyncClient, headers: dict[str, str], param: str, code: str
) -> None:
    assert_error(await http.post(PATHS[0], content=raw('"n":1'), headers=headers), 415, param, code)


async def test_a_body_with_two_lengths_is_refused(http: httpx2.AsyncClient) -> None:
    headers = PLAIN_JSON | {"content-length": "5", "transfer-encoding": "chunked"}
    answer = await http.post(PATHS[0], content=raw('"n":1'), headers=headers)
    assert_error(answer, 400, "Content-Length", "invalid_value")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("key", ["", "k" * 256, "schlüssel", "a\tb"])
async def test_an_idempotency_key_is_printable_ascii(http: httpx2.AsyncClient, key: str) -> None:
    answer = await http.post(PATHS[0], json=chat(), headers=[(b"idempotency-key", key.encode())])
    assert_error(answer, 400, "Idempotency-Key", "invalid_idempotency_key")


async def test_two_idempotency_keys_are_one_too_many(http: httpx2.AsyncClient) -> None:
    answer = await http.post(PATHS[0], json=chat(), headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
    assert_error(answer, 400, "Idempotency-Key", "invalid_idempotency_key")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("refusal", "status", "param", "code"),
    [
        (StoreUnavailable("redis://:secret@10.0.0.1"), 503, None, "store_unavailable"),
        (IdempotencyConflict("key"), 409, "Idempotency-Key", "idempotency_key_reused"),
        (SessionBusy("chat-1", "turn-other"), 409, None, "session_busy"),
        (RuntimeError("secret at /srv/app"), 500, None, "internal_error"),
    ],
)
async def test_a_refused_submit_says_why_and_nothing_internal(
    turns: FakeTurns, path: str, refusal: Exception, status: int, param: str | None, code: str
) -> None:
    turns.refusal = refusal
    async with caller(app_with(turns)) as http:
        answer = await http.post(path, json=chat(stream=True) if "chat" in path else chat())
    message = assert_error(answer, status, param, code)
    assert not any(word in message for word in ("secret", "redis", "/srv", "turn-other", "Traceback"))
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize("size", [8 * 2**20 + 1, 9 * 2**20, 40 * 2**20])
@pytest.mark.parametrize("length", ["true", "none"])
async def test_a_body_over_the_limit_is_refused(http: httpx2.AsyncClient, size: int, length: str) -> None:
    async def pieces() -> Any:
        for _ in range(size // 2**16 + 1):
            yield b"a" * 2**16

    content = b"a" * size if length == "true" else pieces()
    answer = await http.post(PATHS[0], content=content, headers=PLAIN_JSON)
    assert_error(answer, 413, None, "request_too_large")
    assert answer.headers["connection"] == "close"


async def test_a_body_that_says_it_is_far_too_large_is_not_waited_for() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing of it is read")

    headers = [(b"content-type", b"application/json"), (b"content-length", b"99999999999999")]
    with pytest.raises(ApiError) as caught:
        await read_object(Request({"type": "http", "headers": headers}, receive), 4 * 2**20)
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")
    assert caught.value.headers["connection"] == "close"


async def test_a_huge_body_is_neither_kept_nor_read_to_its_end() -> None:
    received = 0

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"a" * 2**20, "more_body": received < 1_000}

    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    tracemalloc.start()
    with pytest.raises(ApiError) as caught:
        await read_object(Request(scope, receive), 4 * 2**20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.status == 413
    assert received < 10
    assert peak < 7 * 2**20


async def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api_client.web.bodies.body.BODY_SECONDS", 0.05)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(ApiError) as caught:
        await read_object(Request(scope, receive), 1_000)
    assert (caught.value.status, caught.value.code) == (408, "request_timeout")


async def test_a_form_that_never_ends_is_given_up_and_needs_no_key_for_that(
    turns: FakeTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api_client.web.bodies.body.BODY_SECONDS", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b"k"
            await asyncio.sleep(0.01)

    async with caller(app_with(turns, api_keys=("key",))) as http:
        answer = await http.post("/sign-in", content=trickle())
    assert (answer.status_code, "request_timeout" in answer.text) == (408, True)


async def test_bodies_read_at_once_are_bounded_and_no_owner_takes_all(
    turns: FakeTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it some clients with large bodies fill the memory of a relay (the class "resource exhaustion")."""
    monkeypatch.setattr("api_client.web.bodies.body.MAX_READING_BYTES", 200_000)
    held = asyncio.Event()

    async def slow(size: int) -> AsyncIterator[bytes]:
        yield raw('"n":1').ljust(size)
        await held.wait()

    app = app_with(turns, api_keys=("one", "other"))
    async with caller(app, authorization="Bearer one") as one, caller(app, authorization="Bearer other") as other:
        waiting = asyncio.create_task(one.post(PATHS[1], content=slow(90_000), headers=PLAIN_JSON))
        await wait_until(lambda: body._reading.total_bytes >= 90_000)
        again = raw('"n":1').ljust(90_000)
        refused = await one.post(PATHS[1], content=again, headers=PLAIN_JSON)
        assert_error(refused, 429, None, "too_many_requests")
        assert refused.headers["retry-after"] == "1"
        assert (await other.post(PATHS[1], content=again, headers=PLAIN_JSON)).status_code == 202
        held.set()
        assert (await waiting).status_code == 202
        assert (await one.post(PATHS[1], content=again, headers=PLAIN_JSON)).status_code == 202


async def test_a_long_message_and_a_body_at_the_limit_work(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    text = "ä" * 150_000
    assert (await http.post(PATHS[1], json=said(text))).status_code == 202
    assert turns.submitted[0].prompt == text
    padded = raw('"n":1').ljust(8 * 2**20)
    answer = await http.post(PATHS[1], content=padded, headers=PLAIN_JSON)
    assert answer.status_code == 202


async def test_what_came_is_never_echoed_beyond_80_characters(http: httpx2.AsyncClient) -> None:
    answer = await http.post(PATHS[0], json=chat(model="\u202e\x1b[31m" + "m" * 10_000))
    message = assert_error(answer, 404, "model", "model_not_found")
    assert message.count("m") < 120
    answer = await http.post(PATHS[0], json=chat(messages=[{"role": "user", "content": {"secret": "x"}}]))
    assert "secret" not in answer.text


async def test_a_byte_order_mark_and_ignored_parameters_are_fine(http: httpx2.AsyncClient, turns: FakeTurns) -> None:
    body = chat(temperature=0.5, tools=[], tool_choice="none", seed=10**30, stream=None, n=None, logprobs=False)
    body |= {"response_format": {"type": "text"}}
    content = b"\xef\xbb\xbf" + json.dumps(body).encode()
    answer = await http.post(PATHS[0], content=content, headers=PLAIN_JSON)
    assert answer.status_code == 200
    assert len(turns.submitted) == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/turns", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", 405, "method_not_allowed"),
        ("GET", f"/v1/turns/turn-{'0' * 32}", 404, "turn_not_found"),
        ("GET", f"/v1/turns/turn-{'0' * 32}/events", 404, "turn_not_found"),
        ("GET", f"/v1/turns/turn-{'0' * 32}/attempts", 404, "turn_not_found"),
        ("POST", f"/v1/turns/turn-{'0' * 32}/cancel", 404, "turn_not_found"),
        ("DELETE", f"/v1/turns/turn-{'0' * 32}", 404, "turn_not_found"),
        ("GET", "/v1/turns/nonsense", 404, "turn_not_found"),
        ("GET", "/docs", 404, "not_found"),
    ],
)
async def test_every_address_answers_with_the_error_object(
    http: httpx2.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/turns", "GET, HEAD, POST"),
        (f"/v1/turns/turn-{'0' * 32}", "GET, HEAD, DELETE"),
        ("/v1/chat/completions", "POST"),
        ("/healthz", "GET, HEAD"),
    ],
)
async def test_a_method_that_is_not_allowed_is_told_all_that_are(
    http: httpx2.AsyncClient, path: str, methods: str
) -> None:
    answer = await http.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/models"])
async def test_a_base_url_without_its_version_is_told(http: httpx2.AsyncClient, path: str) -> None:
    message = (await http.post(path)).json()["error"]["message"]
    assert message == "there is nothing at this address; a client's base URL ends with /v1"


@pytest.mark.parametrize("given", ["-1", "abc", "1", "1-", "1-a-b", "9" * 30 + "-abc", "1-äb", "٣-abc"])
async def test_a_last_event_id_that_is_none_is_refused(http: httpx2.AsyncClient, given: str) -> None:
    answer = await http.get(f"/v1/turns/{TURN_ID}/events", headers=[(b"last-event-id", given.encode())])
    assert_error(answer, 400, "Last-Event-ID", "invalid_event_id")

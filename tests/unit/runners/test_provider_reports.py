"""The model proxy reads the end of a model call as its provider tells it, in every form and however it is cut."""

import gzip
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from worker.runners.observed_calls import MOST_CALLS, ModelCall, ModelCallEnd
from worker.runners.sandbox.body_framing import BodyFraming, BrokenFraming
from worker.runners.sandbox.call_log import CallLog, call_log_path, read_adopted_calls
from worker.runners.sandbox.provider_reports import find_api

_PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/gemini-x:streamGenerateContent",
}
_SSE = {b"content-type": b"text/event-stream; charset=utf-8"}
_JSON = {b"content-type": b"application/json"}


def call(
    api: str,
    *pieces: bytes,
    headers: dict[bytes, bytes] = _JSON,
    status: int = 200,
    whole: bool = True,
    model: str = "m",
) -> ModelCall:
    """One call as it passes by."""
    record = CallLog()
    listening = record.observe_call(_PATHS[api])
    assert listening
    listening.observe_request(b"x" * 400, "gemini-x" if api == "gemini" else model, tools=True)
    listening.observe_head(status, headers)
    for piece in pieces:
        listening.observe_body(piece)
    listening.end_call(whole=whole)
    [found] = record.observed_calls().calls
    return found


def events(*data: dict[str, Any] | str) -> bytes:
    """An event stream; those with a type have a line for it too."""
    said = b""
    for each in data:
        text = each if isinstance(each, str) else json.dumps(each)
        kind = f"event: {each['type']}\n" if isinstance(each, dict) and "type" in each else ""
        said += f"{kind}data: {text}\n\n".encode()
    return said


def messages(reason: str | None, *, tail: tuple[dict[str, Any], ...] = ({"type": "message_stop"},)) -> bytes:
    start = {"message": {"model": "m", "usage": {"input_tokens": 4, "cache_read_input_tokens": 7, "output_tokens": 1}}}
    text = {
        "type": "content_block_delta",
        "delta": {"text": 'so "stop_reason":"end_turn" and error'},
    }
    end = [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 9}}] if reason else []
    return events({"type": "message_start", **start}, {"type": "ping"}, text, *end, *tail)


def chat(reason: str | None, *, delta: dict[str, Any] | None = None) -> bytes:
    def chunk(piece: dict[str, Any], why: str | None = None) -> dict[str, Any]:
        return {"model": "m", "choices": [{"index": 0, "delta": piece, "finish_reason": why}]}

    usage = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 9}}
    end = [chunk({}, reason), usage, "[DONE]"] if reason else []
    return events(chunk({"content": 'say "finish_reason":"length"'}), *([chunk(delta)] if delta else []), *end)


def responses(status: str, *, reason: str = "", item: dict[str, Any] | None = None, **more: Any) -> bytes:
    items = [{"type": "response.output_item.done", "item": item}] if item else []
    whole = {"status": status, "model": "m", "usage": {"input_tokens": 11, "output_tokens": 9}, "error": None, **more}
    whole["incomplete_details"] = {"reason": reason} if reason else None
    delta = {"type": "response.output_text.delta", "delta": "response.completed"}
    return events(delta, *items, {"type": f"response.{status}", "response": whole})


def gemini(reason: str | None, part: dict[str, Any] | None = None) -> bytes:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 5, "thoughtsTokenCount": 4}
    last = {"content": {"parts": [part or {"text": "b"}]}, **({"finishReason": reason} if reason else {})}
    return events(
        {"candidates": [{"content": {"parts": [{"text": "finish"}]}}], "usageMetadata": {"promptTokenCount": 11}},
        {"candidates": [last], "usageMetadata": usage, "modelVersion": "g"},
    )


_STREAMS = [
    ("messages", messages("end_turn"), "well"),
    ("messages", messages("stop_sequence"), "well"),
    ("messages", messages("tool_use"), "tool"),
    ("messages", messages("max_tokens"), "limit"),
    ("messages", messages("model_context_window_exceeded"), "limit"),
    ("messages", messages("refusal"), "refused"),
    ("messages", messages("pause_turn"), "paused"),
    ("messages", messages("never_heard_of"), "unknown"),
    ("messages", messages(None, tail=({"type": "error", "error": {"type": "overloaded_error"}},)), "error"),
    ("chat", chat("stop"), "well"),
    ("chat", chat("tool_calls"), "tool"),
    ("chat", chat("stop", delta={"tool_calls": [{"index": 0}]}), "tool"),
    ("chat", chat("stop", delta={"refusal": "I will not"}), "refused"),
    ("chat", chat("length"), "limit"),
    ("chat", chat("content_filter"), "refused"),
    ("chat", chat(None) + events({"error": {"message": "secret", "code": "server_error"}}), "error"),
    ("responses", responses("completed"), "well"),
    ("responses", responses("completed", item={"type": "function_call"}), "tool"),
    ("responses", responses("completed", item={"type": "web_search_call"}), "well"),
    ("responses", responses("completed", output=[{"type": "message", "content": [{"type": "refusal"}]}]), "refused"),
    ("responses", responses("incomplete", reason="max_output_tokens"), "limit"),
    ("responses", responses("incomplete", reason="content_filter"), "refused"),
    ("responses", responses("failed", error={"code": "server_error", "message": "secret"}), "error"),
    ("gemini", gemini("STOP"), "well"),
    ("gemini", gemini("STOP", {"functionCall": {"name": "x"}}), "tool"),
    ("gemini", gemini("MAX_TOKENS"), "limit"),
    ("gemini", gemini("SAFETY"), "refused"),
    ("gemini", gemini("MALFORMED_FUNCTION_CALL"), "error"),
    ("gemini", gemini("NEVER_HEARD_OF"), "unknown"),
    ("gemini", events({"promptFeedback": {"blockReason": "OTHER"}}), "refused"),
]
_IDS = [f"{api} {end} {number}" for number, (api, _, end) in enumerate(_STREAMS)]


@pytest.mark.parametrize(("api", "body", "end"), _STREAMS, ids=_IDS)
@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_a_stream_tells_its_end_however_it_is_cut_into_pieces(api: str, body: bytes, end: str, size: int) -> None:
    found = call(api, *(body[at : at + size] for at in range(0, len(body), size)), headers=_SSE)
    assert found.end == end
    assert "secret" not in found.word


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("messages", messages("end_turn")),
        ("chat", chat("stop")),
        ("responses", responses("completed")),
        ("gemini", gemini("STOP")),
    ],
)
def test_tokens_model_and_word_are_the_providers(api: str, body: bytes) -> None:
    found = call(api, body, headers=_SSE)
    assert (found.input_tokens, found.output_tokens, found.tools) == (11, 9, True)
    assert found.model == ("gemini-x" if api == "gemini" else "m")
    assert found.word in {"end_turn", "stop", "completed", "STOP"}


@pytest.mark.parametrize(("api", "body", "end"), _STREAMS, ids=_IDS)
def test_a_stream_that_breaks_off_before_its_end_was_cut(api: str, body: bytes, end: str) -> None:
    first = body[: body.index(b"\n\n") + 2] if api != "responses" else body[:40]
    if b"blockReason" not in first:
        assert call(api, first, headers=_SSE, whole=False).end == "cut"
        assert call(api, first, headers=_SSE).end == "cut", "its connection may end in order, too"


_ANSWERS = [
    ("messages", {"type": "message", "stop_reason": "end_turn", "usage": {"output_tokens": 9}}, "well"),
    ("messages", {"type": "message", "stop_reason": "max_tokens"}, "limit"),
    ("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}, "well"),
    ("chat", {"choices": [{"message": {"tool_calls": [{}]}, "finish_reason": "stop"}]}, "tool"),
    ("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}, "limit"),
    ("responses", {"object": "response", "status": "completed", "error": None, "output": []}, "well"),
    ("responses", {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "limit"),
    ("gemini", {"candidates": [{"finishReason": "STOP"}]}, "well"),
    ("gemini", [{"candidates": [{}]}, {"candidates": [{"finishReason": "MAX_TOKENS"}]}], "limit"),
]


@pytest.mark.parametrize(("api", "body", "end"), _ANSWERS)
def test_an_answer_in_one_piece_tells_its_end(api: str, body: Any, end: str) -> None:
    said = json.dumps(body).encode()
    assert call(api, said[:9], said[9:]).end == end
    assert call(api, said[:9], whole=False).end == "cut"


@pytest.mark.parametrize(
    ("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)], ids=["gzip", "deflate"]
)
def test_a_packed_answer_is_read_and_of_a_form_that_we_cannot_unpack_nobody_knows_the_end(
    encoding: bytes, pack: Any
) -> None:
    packed = pack(messages("max_tokens"))
    pieces = [packed[at : at + 5] for at in range(0, len(packed), 5)]
    assert call("messages", *pieces, headers=_SSE | {b"content-encoding": encoding}).end == "limit"
    found = call("messages", *pieces, headers=_SSE | {b"content-encoding": b"br"})
    assert (found.end, found.word) == ("unknown", "content-encoding:br")
    assert call("messages", b"garbage", headers=_SSE | {b"content-encoding": encoding}).end == "unknown"


def test_an_http_error_is_an_error_with_the_providers_kind_and_its_wait() -> None:
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"secret"}}'
    found = call("messages", body, status=429, headers=_JSON | {b"retry-after": b"12"})
    assert (found.end, found.status, found.word, found.retry_after) == ("error", 429, "rate_limit_error", 12.0)
    assert call("chat", b"<html>", status=502).end == "error"
    assert call("messages", b"<html>what is this", status=200).end == "unknown"


def test_only_model_calls_are_calls() -> None:
    assert {api: find_api(path) for api, path in _PATHS.items()} == {api: api for api in _PATHS}
    for path in ("/v1/messages/count_tokens", "/v1/models", "/v1beta/models/g:countTokens", "/"):
        assert find_api(path) is None


def test_memory_is_bounded_whatever_a_service_sends() -> None:
    record = CallLog()
    endless, whole = record.observe_call(_PATHS["chat"]), record.observe_call(_PATHS["chat"])
    assert endless
    assert whole
    endless.observe_head(200, _SSE)
    whole.observe_head(200, _JSON)
    tracemalloc.start()
    for _ in range(400):
        endless.observe_body(b"x" * 65_536)
        whole.observe_body(b"x" * 65_536)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 24 * 2**20
    endless.end_call(whole=True)
    whole.end_call(whole=True)
    assert [found.end for found in record.observed_calls().calls] == [ModelCallEnd.UNKNOWN] * 2


def test_of_very_many_calls_the_last_are_kept_and_a_message_sees_its_own() -> None:
    record = CallLog()
    for _ in range(MOST_CALLS + 5):
        listening = record.observe_call(_PATHS["chat"])
        assert listening
        listening.end_call(whole=False)
    seen = record.observed_calls()
    assert (len(seen.calls), seen.left_out) == (MOST_CALLS, 5)
    assert (
        len(record.observed_calls(record.count_calls()).calls),
        len(record.observed_calls(record.count_calls() - 2).calls),
    ) == (0, 2)


def answered(record: CallLog, status: int, body: bytes = b"", model: str = "m") -> None:
    listening = record.observe_call(_PATHS["messages"])
    assert listening
    listening.observe_request(b"x" * 400, model, tools=True)
    listening.observe_head(status, _SSE if status == 200 else _JSON)
    listening.observe_body(body, whole=True)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("refused", [0, MOST_CALLS, 3 * MOST_CALLS])
def test_tokens_are_counted_however_many_calls_come_after_them(tmp_path: Path, refused: int, recorded: bool) -> None:
    record = CallLog(call_log_path(tmp_path / "1-1"))
    for number in range(20):
        answered(record, 200, messages("tool_use"), model=f"m{number % 2}")
    for _ in range(refused):
        answered(record, 400, b'{"error": {"type": "invalid_request_error"}}')
    answered(record, 200, messages("end_turn"), model="m1")
    seen = read_adopted_calls(tmp_path / "1-1") if recorded else record.observed_calls()
    assert seen is not None
    assert len(seen.calls) <= MOST_CALLS
    found = {model: (tokens.input_tokens, tokens.output_tokens) for model, tokens in seen.counted_tokens.items()}
    assert found["m0"] == (110, 90)
    assert found["m1"] == (121, 99)
    assert (seen.to_dict()["input_tokens"], seen.to_dict()["calls"]) == (231, 21 + refused)
    before = record.count_calls()
    answered(record, 200, messages("end_turn"))
    [(model, tokens)] = record.observed_calls(before).counted_tokens.items()
    assert (model, tokens.output_tokens) == ("m", 9), "the next message has its own"


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("known_by", ["status", "event"])
def test_a_call_that_is_repeated_before_its_error_has_arrived_whole_counts_as_repeated(
    tmp_path: Path, known_by: str, recorded: bool
) -> None:
    record = CallLog(call_log_path(tmp_path / "1-1"))
    body = json.dumps({"messages": [{"role": "user", "content": "one"}]}).encode()
    failed, again = record.observe_call(_PATHS["messages"]), record.observe_call(_PATHS["messages"])
    assert failed
    assert again
    failed.observe_request(body, "m", tools=False)
    if known_by == "status":
        failed.observe_head(429, _JSON)
    else:
        failed.observe_head(200, _SSE)
        failed.observe_body(events({"type": "error", "error": {"type": "rate_limit_error", "message": "later"}}))
    again.observe_request(body, "m", tools=False)
    again.observe_head(200, _SSE)
    failed.end_call(whole=False)
    again.observe_body(messages("end_turn"), whole=True)
    seen = read_adopted_calls(tmp_path / "1-1") if recorded else record.observed_calls()
    assert seen
    assert [(each.end.value, each.repeated) for each in seen.calls] == [("error", True), ("well", False)]


def test_a_long_call_that_ends_behind_very_many_others_is_counted() -> None:
    record = CallLog()
    long = record.observe_call(_PATHS["messages"])
    assert long
    long.observe_request(b"x" * 400, "slow", tools=True)
    long.observe_head(200, _SSE)
    for _ in range(MOST_CALLS + 5):
        answered(record, 400)
    long.observe_body(messages("end_turn"), whole=True)
    assert record.observed_calls().counted_tokens["slow"].output_tokens == 9


_READ = {
    "cache_read_input_tokens": 19_000,
    "cache_creation_input_tokens": 0,
    "input_tokens": 1_000,
    "output_tokens": 60,
}
_OPENAI = {"prompt_tokens": 20_000, "completion_tokens": 60, "prompt_tokens_details": {"cached_tokens": 19_000}}
_RESPONSES = {"input_tokens": 20_000, "output_tokens": 60, "input_tokens_details": {"cached_tokens": 19_000}}
_GEMINI = {"promptTokenCount": 20_000, "candidatesTokenCount": 60, "cachedContentTokenCount": 19_000}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("messages", {"stop_reason": "end_turn", "usage": _READ}),
        ("chat", {"choices": [{"finish_reason": "stop"}], "usage": _OPENAI}),
        ("responses", {"status": "completed", "usage": _RESPONSES}),
        ("gemini", {"candidates": [{"finishReason": "STOP"}], "usageMetadata": _GEMINI}),
    ],
)
def test_cached_tokens_cost_their_own_price_in_every_dialect(api: str, body: dict[str, Any]) -> None:
    found = call(api, json.dumps(body).encode())
    assert (found.input_tokens, found.cache_read_tokens, found.output_tokens) == (20_000, 19_000, 60)
    prices = {"input": 5.0, "output": 25.0}
    assert found.counted_tokens.compute_cost({**prices, "cache_read": 0.5}) == pytest.approx(0.016)
    assert found.counted_tokens.compute_cost(prices) == pytest.approx(0.1015), (
        "without a price of its own: that of the input"
    )


def test_what_is_written_into_the_cache_costs_more_than_the_input_and_for_an_hour_most() -> None:
    hour = {"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 3_000}
    usage = {"input_tokens": 6_000, "cache_creation_input_tokens": 4_000, "cache_creation": hour}
    body = {"stop_reason": "end_turn", "usage": usage | {"output_tokens": 1}}
    found = call("messages", json.dumps(body).encode())
    assert (found.input_tokens, found.cache_write_tokens, found.cache_hour_tokens) == (10_000, 4_000, 3_000)
    assert found.counted_tokens.compute_cost({"input": 1.0}) == pytest.approx((6_000 + 1_250 + 6_000) / 1e6)
    assert found.counted_tokens.compute_cost({"input": 1.0, "cache_write": 1.0}) == pytest.approx(
        (6_000 + 1_000 + 4_800) / 1e6
    )


@pytest.mark.parametrize("cut", ["before the head", "behind the head", "in the middle", "no usage", "unreadable"])
def test_a_call_whose_provider_named_no_number_is_estimated_and_costs_something(cut: str) -> None:
    record = CallLog()
    listening = record.observe_call(_PATHS["chat"])
    assert listening
    listening.observe_request(b"x" * 40_000, "m", tools=True)
    if cut != "before the head":
        listening.observe_head(200, _SSE | ({b"content-encoding": b"br"} if cut == "unreadable" else {}))
    if cut not in {"before the head", "behind the head"}:
        listening.observe_body(chat("stop")[:-90] if cut == "no usage" else chat(None) * 50)
    listening.end_call(whole=cut in {"no usage", "unreadable"})
    [found] = record.observed_calls().calls
    assert found.estimated
    assert found.input_tokens == 10_001
    assert found.output_tokens >= {"in the middle": 50, "no usage": 2, "unreadable": 50}.get(cut, 0)


def test_an_answer_that_its_agent_left_before_its_last_event_is_not_free() -> None:
    start = messages(None, tail=())
    text = events({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word " * 4}}) * 1_000
    found = call("messages", start, text, headers=_SSE, whole=False)
    assert (found.input_tokens, found.estimated) == (11, True), "the input is known"
    assert found.output_tokens >= 1_000


def test_a_call_that_never_left_costs_nothing() -> None:
    record = CallLog()
    for number, why in enumerate(("unreachable", "")):
        listening = record.observe_call(_PATHS["chat"])
        assert listening
        if why:
            listening.observe_request(b"x" * 40_000, "m", tools=True)
        listening.log_refusal(400, "web_search") if not why else listening.end_call(whole=False, why=why)
        assert record.observed_calls().calls[number].input_tokens == 0
    assert record.observed_calls().calls[1].word == "model proxy: web_search"


def test_a_call_that_still_runs_is_seen_as_it_is_now() -> None:
    record = CallLog()
    listening = record.observe_call(_PATHS["messages"])
    assert listening
    listening.observe_head(200, _SSE)
    assert record.observed_calls().calls[0].end == "cut"
    listening.observe_body(messages("end_turn"))
    assert record.observed_calls().calls[0].end == "well"


def test_who_adopts_a_run_finds_the_calls_that_its_worker_saw(tmp_path: Path) -> None:
    folder = tmp_path / "1-1"
    assert read_adopted_calls(folder) is None
    record = CallLog(call_log_path(folder))
    for reason in ("tool_use", "end_turn"):
        listening = record.observe_call(_PATHS["messages"])
        assert listening
        listening.observe_head(200, _SSE)
        listening.observe_body(messages(reason), whole=True)
    with call_log_path(folder).open("a") as file:
        file.write('{"api": "messages", "en')  # its worker died here
    found = read_adopted_calls(folder)
    assert found is not None
    assert list(found.calls) == list(record.observed_calls().calls)
    later = read_adopted_calls(folder, since=1)
    assert later is not None
    assert [call.end for call in later.calls] == ["well"]


def test_who_adopts_a_run_knows_of_a_call_what_its_door_knew_when_its_worker_died(tmp_path: Path) -> None:
    record = CallLog(call_log_path(tmp_path / "1-1"))
    listening = record.observe_call(_PATHS["messages"])
    assert listening

    def known() -> tuple[str, bool]:
        found = read_adopted_calls(tmp_path / "1-1")
        assert found is not None
        [call] = found.calls
        return call.end.value, call.tools

    assert known() == ("cut", False)
    listening.observe_request(b"x" * 400, "m", tools=True)
    assert known() == ("cut", True)
    listening.observe_head(200, _SSE)
    listening.observe_body(messages("end_turn"))
    assert known() == ("well", True), "it may end before its connection does"


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_the_end_of_a_body_is_found_by_its_framing(size: int) -> None:
    raw = b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n"
    chunked = BodyFraming({b"transfer-encoding": b"chunked"}, bodyless=False)
    assert b"".join(chunked.read_body(raw[at : at + size]) for at in range(0, len(raw), size)) == b"hello world"
    assert chunked.over
    sized = BodyFraming({b"content-length": b"11"}, bodyless=False)
    body = b"hello worldXX"
    assert b"".join(sized.read_body(body[at : at + size]) for at in range(0, len(body), size)) == b"hello world"
    assert sized.over
    assert BodyFraming({b"content-length": b"9"}, bodyless=True).over
    assert BodyFraming({}, bodyless=False).until_closed


@pytest.mark.parametrize("raw", [b"hello\r\n", b"-5\r\nhello\r\n", b"1" * 20_000], ids=["word", "negative", "endless"])
def test_a_body_that_is_not_framed_as_it_says_is_broken(raw: bytes) -> None:
    with pytest.raises(BrokenFraming):
        BodyFraming({b"transfer-encoding": b"chunked"}, bodyless=False).read_body(raw)


@pytest.mark.parametrize(
    ("api", "error", "status", "word", "wait"),
    [
        ("chat", {"code": "400", "type": "None", "message": "bad"}, 400, "400", 0),
        ("chat", {"code": "429", "message": "Please try again in 1m30s."}, 429, "429", 90),
        ("chat", {"code": 422.0, "message": "bad"}, 422, "error", 0),
        ("chat", {"code": "insufficient_quota", "message": "x"}, 402, "insufficient_quota", 0),
        ("chat", {"message": "x", "metadata": {"code": 503}}, 503, "error", 0),
        ("messages", {"type": "overloaded_error", "message": "x"}, 529, "overloaded_error", 0),
        ("messages", {"type": "invalid_request_error", "message": "Your credit balance is too low"}, 400,
         "insufficient_quota", 0),
        ("messages", {"type": "rate_limit_error", "retry_after": "36000"}, 429, "rate_limit_error", 36000),
        ("gemini", {"code": 400, "status": "INVALID_ARGUMENT", "message": "x"}, 400, "INVALID_ARGUMENT", 0),
        ("gemini", {"status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "7s"}]}, 429, "RESOURCE_EXHAUSTED", 7),
        ("responses", {"code": "rate_limit_exceeded", "message": "x"}, 429, "rate_limit_exceeded", 0),
    ],
)  # fmt: skip
def test_an_error_in_an_answer_has_the_status_and_the_wait_that_it_names(
    api: str, error: dict[str, Any], status: int, word: str, wait: float
) -> None:
    said = {"type": "error", "error": error} if api in {"messages", "responses"} else {"error": error}
    for streamed, http in ((True, 200), (False, 200), (False, 500)):
        body = events(said) if streamed else json.dumps(said).encode()
        found = call(api, body, headers=_SSE if streamed else _JSON, status=http)
        expected = http if http == 500 and status >= 500 else status
        assert (found.end, found.status, found.word, found.retry_after) == (ModelCallEnd.ERROR, expected, word, wait)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({b"retry-after": b"36000"}, 36000),
        ({b"retry-after-ms": b"1500"}, 1.5),
        ({b"x-ratelimit-reset-requests": b"6m"}, 360),
    ],
)
def test_a_header_s_wait_goes_before_the_error_s(headers: dict[bytes, bytes], wait: float) -> None:
    body = json.dumps({"error": {"message": "try again in 2s", "type": "rate_limit_error"}}).encode()
    assert call("messages", body, headers=_JSON | headers, status=429).retry_after == wait

"""The kit's stub services say what their replies say, in each of the four forms."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from worker.plugins.certification.services import StubService
from worker.plugins.certification.situations import SITUATIONS
from worker.plugins.certification.stub_reply import LAST_WORDS, PART, QUESTION, SUB_QUESTION, StubReply
from worker.runners.observed_calls import ModelCall
from worker.runners.sandbox.call_log import CallLog

_PATHS = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/g:streamGenerateContent",
}


def seen(api: str, reply: StubReply, *, stream: bool = True) -> tuple[ModelCall, bytes]:
    """One call of a service, as the model proxy sees it, and its body."""
    record = CallLog()
    path = _PATHS[api] if stream else _PATHS[api].replace("streamGenerate", "generate")
    listening = record.observe_call(path)
    assert listening
    request = json.dumps({"model": "m", "stream": stream, "tools": [{"name": "x"}]}).encode()
    listening.observe_request(request, "m", tools=True)
    body = b""
    with StubService((reply,), tools=True) as service:
        client = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=60)
        try:
            client.request("POST", path, request)
            answer = client.getresponse()
            headers = {name.lower().encode(): value.encode() for name, value in answer.getheaders()}
            listening.observe_head(answer.status, headers)
            body = answer.read()
            listening.observe_body(body, whole=True)
        except (http.client.HTTPException, OSError) as error:
            body = getattr(error, "partial", b"")
            listening.observe_body(body)
            listening.end_call(whole=False)
        finally:
            client.close()
    return record.observed_calls().calls[0], body


@pytest.mark.parametrize("api", list(_PATHS))
@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (StubReply(pieces=("a ", LAST_WORDS)), "well"),
        (StubReply(pieces=("a ", "b"), end="limit"), "limit"),
        (StubReply(pieces=("a ", "b"), end="filter"), "refused"),
        (StubReply(pieces=("a ", "b"), end="refusal"), "refused"),
        (StubReply(pieces=("a ", "b"), end="odd"), "unknown"),
        (StubReply(pieces=("a ", "b"), end="none"), "cut"),
        (StubReply(pieces=("a ",), tool=("look", "{}")), "tool"),
        (StubReply(pieces=("a ", "b"), cut="first"), "cut"),
        (StubReply(pieces=("a ", "b"), cut="before"), "cut"),
        (StubReply(pieces=("a ", "b"), cut="end"), "cut"),
        (StubReply(pieces=("a ", "b"), fails=True), "error"),
        (StubReply(status=429, retry_after="7"), "error"),
        (StubReply(body=b"<html>"), "unknown"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{value.end}{value.cut}{value.status}{value.fails}",
)
def test_a_reply_ends_as_it_says(api: str, reply: StubReply, end: str) -> None:
    call, body = seen(api, reply)
    assert call.end == end
    if end == "well":
        assert LAST_WORDS.encode() in body
        assert (call.input_tokens, call.output_tokens) == (11, 7)
        whole, said = seen(api, reply, stream=False)
        assert (whole.end, LAST_WORDS.encode() in said) == ("well", True)


def test_a_call_without_tools_is_a_side_call_and_takes_nothing_of_the_script() -> None:
    with StubService((StubReply(status=500), StubReply(pieces=(LAST_WORDS,))), tools=True) as service:
        assert service.take({"messages": []}).status == 200
        assert [service.take({"tools": [{}]}).status for _ in range(3)] == [500, 200, 200]
        assert service.calls == 3


_TAKES = {"properties": {"prompt": {}, "subagent_type": {}}}
_AGENT_TOOLS = {
    "messages": {"name": "Task", "input_schema": _TAKES},
    "responses": {"type": "function", "name": "agent", "parameters": _TAKES},
    "chat": {"type": "function", "function": {"name": "Agent", "parameters": _TAKES}},
    "gemini": {"functionDeclarations": [{"name": "task", "parametersJsonSchema": _TAKES}]},
}


@pytest.mark.parametrize("tool", _AGENT_TOOLS.values(), ids=list(_AGENT_TOOLS))
def test_a_sub_agent_is_called_by_the_tool_that_is_offered_and_its_calls_get_their_own_reply(tool: object) -> None:
    script = (StubReply(helper=StubReply(status=400)), StubReply(pieces=(LAST_WORDS,)))
    with StubService(script, tools=True) as service:
        called = service.take({"tools": [{"name": "look"}, tool], "messages": [QUESTION]})
        name, given = called.tool or ("", "{}")
        assert name.lower() in {"agent", "task"}
        assert json.loads(given) == {"prompt": SUB_QUESTION, "subagent_type": "general"}
        assert (service.take({"messages": [SUB_QUESTION]}).status, service.met) == (400, {"sub-agent"})
        assert service.take({"tools": [tool], "messages": [QUESTION, SUB_QUESTION]}).text == LAST_WORDS
    with StubService(script, tools=True) as service:
        assert service.take({"tools": [{"name": "look"}], "messages": [QUESTION]}).text == LAST_WORDS
        assert not service.met


@pytest.mark.parametrize(
    ("end", "later", "repaired"),
    [
        ("limit", ["one"], True),
        ("limit", ["one", PART, "Go on."], True),
        ("limit", ["two"], False),
        ("limit", None, False),
        ("filter", ["one"], True),
        ("filter", ["one", PART, "Go on."], False),
    ],
)
def test_a_part_is_repaired_by_asking_again_and_a_limit_by_going_on(end: Any, later: Any, repaired: bool) -> None:
    with StubService((StubReply(pieces=(PART,), end=end), StubReply(pieces=(LAST_WORDS,))), tools=False) as service:
        service.take({"system": "Rules.", "messages": ["one"]})
        if later:
            service.take({"system": "Rules.", "messages": later})
        assert (service.is_repaired, service.met) == (repaired, {"later call"} if later else set())


def test_there_are_more_than_thirty_situations_and_each_has_its_own_name() -> None:
    names = [situation.name for situation in SITUATIONS]
    assert len(set(names)) == len(names) > 50
    for situation in SITUATIONS:
        whole = any(LAST_WORDS in reply.text for reply in situation.replies)
        assert whole or situation.truth == "broken", situation.name

"""What the model proxy passes on of the bodies of model calls, and what it refuses."""

import json
from typing import Any

import pytest

from worker.runners.sandbox.model_requests import CallNotAllowed, check_request

JSON = [(b"content-type", b"application/json")]
PATHS = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/m:streamGenerateContent",
}
HTTP = "https://evil.example/x"


def refusal(api: str, body: Any, *, allows: tuple[str, ...] = (), models: tuple[str, ...] = ("m",)) -> str:
    """The word that the block would have to allow; empty for a call that passes."""
    said = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        check_request(PATHS.get(api, api), JSON, said, models, allows)
    except CallNotAllowed as error:
        return error.word or str(error)
    return ""


def shown(api: str, block: dict[str, Any]) -> dict[str, Any]:
    """A call whose model is shown a block."""
    if api == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": "x"}, block]}]}
    place = "input" if api == "responses" else "messages"
    return {"model": "m", place: [{"role": "user", "content": [{"type": "text", "text": "x"}, block]}]}


def plain(api: str, **more: Any) -> dict[str, Any]:
    return {**shown(api, {"type": "text", "text": HTTP}), **more}


#: An API, a call, and the word by which a block would allow it.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("messages", plain("messages", mcp_servers=[{"type": "url", "url": HTTP, "name": "x"}]), "mcp_servers"),
    ("messages", plain("messages", container="container_1"), "container"),
    ("messages", plain("messages", fallbacks=[{"model": "dear"}]), "fallbacks"),
    ("messages", plain("messages", speed="fast"), "speed"),
    ("messages", plain("messages", inference_geo="us"), "inference_geo"),
    ("messages", plain("messages", service_tier="priority"), "service_tier"),
    *(
        ("messages", plain("messages", tools=[{"type": kind, "name": "x"}]), kind)
        for kind in (
            "web_search_20250305",
            "web_fetch_20250910",
            "code_execution_20250825",
            "advisor_20260301",
            "mcp_toolset",
            "WEB_SEARCH_20250305",
        )
    ),
    ("messages", plain("messages", tools=[{"Type": "web_search_20250305", "name": "x"}]), "web_search_20250305"),
    ("messages", shown("messages", {"type": "image", "source": {"type": "url", "url": HTTP}}), "url"),
    ("messages", shown("messages", {"type": "image", "Source": {"Type": "url", "url": HTTP}}), "url"),
    ("messages", shown("messages", {"type": "document", "source": {"type": "file", "file_id": "f"}}), "file_id"),
    ("messages", shown("messages", {"type": "container_upload", "file_id": "f"}), "container_upload"),
    (
        "messages",
        shown("messages", {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url"}}]}),
        "url",
    ),
    ("messages", plain("messages", system=[{"type": "document", "source": {"type": "url", "url": HTTP}}]), "url"),
    (
        "messages",
        shown("messages", {"type": "tool_addition", "tools": [{"type": "web_fetch_20250910"}]}),
        "web_fetch_20250910",
    ),
    ("chat", plain("chat", web_search_options={"search_context_size": "low"}), "web_search_options"),
    ("chat", plain("chat", plugins=[{"id": "web"}]), "plugins"),
    ("chat", plain("chat", models=["dear"]), "models"),
    ("chat", plain("chat", store=True), "store"),
    ("chat", plain("chat", modalities=["text", "audio"]), "modalities"),
    ("chat", plain("chat", Tools=[{"type": "web_search"}]), "Tools"),
    ("chat", plain("chat", tools=[{"type": "web_search"}]), "web_search"),
    ("chat", shown("chat", {"type": "image_url", "image_url": {"url": HTTP}}), "url"),
    ("chat", shown("chat", {"type": "image_url", "image_url": HTTP}), "url"),
    ("chat", shown("chat", {"type": "file", "file": {"file_id": "f"}}), "file_id"),
    *(
        ("responses", plain("responses", tools=[{"type": kind}]), kind)
        for kind in ("web_search", "web_search_preview", "file_search", "code_interpreter", "mcp", "image_generation")
    ),
    (
        "responses",
        plain("responses", tools=[{"type": "namespace", "name": "x", "tools": [{"type": "web_search"}]}]),
        "web_search",
    ),
    (
        "responses",
        plain("responses", tools=[{"type": "shell", "environment": {"type": "container_auto"}}]),
        "container_auto",
    ),
    ("responses", plain("responses", previous_response_id="r"), "previous_response_id"),
    ("responses", plain("responses", conversation="c"), "conversation"),
    ("responses", plain("responses", prompt={"id": "p"}), "prompt"),
    ("responses", plain("responses", background=True), "background"),
    ("responses", plain("responses", store=True), "store"),
    ("responses", plain("responses", input=[{"type": "item_reference", "id": "i"}]), "item_reference"),
    ("responses", plain("responses", input=[{"id": "i"}]), "item_reference"),
    ("responses", shown("responses", {"type": "input_file", "file_url": HTTP}), "url"),
    ("responses", shown("responses", {"type": "input_image", "image_url": HTTP}), "url"),
    ("responses", shown("responses", {"type": "input_image", "file_id": "f"}), "file_id"),
    (
        "responses",
        plain("responses", input=[{"type": "computer_call_output", "output": {"image_url": HTTP}}]),
        "url",
    ),
    ("gemini", plain("gemini", tools=[{"googleSearch": {}}]), "googlesearch"),
    ("gemini", plain("gemini", tools=[{"urlContext": {}}]), "urlcontext"),
    ("gemini", plain("gemini", tools=[{"functionDeclarations": [], "codeExecution": {}}]), "codeexecution"),
    ("gemini", plain("gemini", cachedContent="cachedContents/1"), "cachedContent"),
    ("gemini", shown("gemini", {"fileData": {"fileUri": HTTP}}), "url"),
    ("gemini", shown("gemini", {"file_data": {"file_uri": HTTP}}), "url"),
]


@pytest.mark.parametrize(("api", "body", "word"), REFUSED)
def test_what_its_provider_would_do_or_fetch_is_refused_unless_the_block_allows_it(
    api: str, body: dict[str, Any], word: str
) -> None:
    assert refusal(api, body) == word
    for allows in ((word,), ("*",)):
        assert refusal(api, body, allows=allows) in {"", "file_id"}, "one word allows it"


#: What agents send, and what only looks like a source.
PASSED: list[tuple[str, dict[str, Any]]] = [
    ("messages", plain("messages", mcp_servers=[], container=None, service_tier="auto")),
    ("messages", plain("messages", tools=[{"name": "WebSearch", "input_schema": {"properties": {"file_id": {}}}}])),
    ("messages", plain("messages", tools=[{"type": "bash_20250124", "name": "bash"}, {"type": "custom", "name": "x"}])),
    ("messages", shown("messages", {"type": "image", "source": {"type": "base64", "data": "eA=="}})),
    ("messages", shown("messages", {"type": "tool_use", "name": "WebFetch", "input": {"url": HTTP, "file_id": "f"}})),
    ("messages", shown("messages", {"type": "text", "citations": [{"type": "url", "url": HTTP}]})),
    ("messages", shown("messages", {"type": "search_result", "source": HTTP, "content": []})),
    ("chat", shown("chat", {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}})),
    ("chat", plain("chat", tools=[{"type": "function", "function": {"parameters": {"type": "url"}}}], store=False)),
    ("responses", plain("responses", tools=[{"type": "custom"}, {"type": "local_shell"}], store=False)),
    ("responses", plain("responses", input="text", include=["reasoning.encrypted_content"])),
    ("responses", plain("responses", input=[{"type": "function_call", "arguments": "{}"}, {"role": "user"}])),
    ("gemini", plain("gemini", tools=[{"functionDeclarations": [{"name": "x", "parameters": {}}]}])),
    ("gemini", shown("gemini", {"functionCall": {"name": "fetch", "args": {"fileUri": HTTP}}})),
    ("gemini", shown("gemini", {"inlineData": {"data": "eA=="}})),
    ("/responses/compact", {"model": "m", "input": []}),
    ("/v1/messages/count_tokens", plain("messages")),
    ("/v1beta/models/m:countTokens", plain("gemini")),
    ("/v1/messages?beta=true", plain("messages")),
    ("/v1beta/models/m:streamGenerateContent?alt=sse", plain("gemini")),
]


@pytest.mark.parametrize(("api", "body"), PASSED)
def test_what_agents_send_passes(api: str, body: dict[str, Any]) -> None:
    assert refusal(api, body) == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b'{"model": "m"} {}',
        b'\xef\xbb\xbf{"model": "m"}',
        '{"model": "m"}'.encode("utf-16"),
        b'{"model": "m\xff"}',
        b'{"model": "m", "model": "other"}',
        b'{"model": "m", "messages": [{"content": [{"type": "text", "type": "url"}]}]}',
        b'{"model": "m", "messages": [{"content": [{"type": "text", "Type": "url"}]}]}',
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": Infinity}',
        b'{"model": "m", "messages": ' + b"[" * 100_000,
        b'{"messages": []}',
        b'{"model": ["m"]}',
        b'{"Model": "m"}',
    ],
)
def test_a_body_that_others_may_read_in_another_way_is_refused(body: bytes) -> None:
    assert refusal("messages", body, allows=("*",)) != ""


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"multipart/form-data; boundary=x")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/json; charset=utf-7")],
        [*JSON, *JSON],
        [*JSON, (b"content-encoding", b"gzip")],
    ],
)
def test_a_body_in_another_form_is_refused_whatever_is_in_it(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(CallNotAllowed):
        check_request("/v1/messages", headers, json.dumps(plain("messages")).encode(), (), ("*",))


def test_models_are_allowed_by_name() -> None:
    def of(name: str, *models: str) -> str:
        return refusal("messages", plain("messages", model=name), models=models)

    assert of("anything") == ""
    assert of("gpt-5", "gpt-5") == ""
    assert of("gpt-5:online", "gpt-5") == "models"
    assert of("GPT-5", "gpt-5") == "models"
    assert of("claude-haiku-9", "gpt-5", "*haiku*") == ""
    assert refusal("/v1beta/models/dear:generateContent", plain("gemini"), models=("m",)) == "models"
    assert refusal("/v1beta/models/m:generateContent", {**plain("gemini"), "model": "dear"}) == "model"


@pytest.mark.parametrize("query", ["?key=AIza", "?beta=true&x", "?a=%00", "?alt=sse&KEY=1"])
def test_a_query_says_nothing_that_is_not_known(query: str) -> None:
    assert refusal(f"/v1/messages{query}", plain("messages")) != ""


def test_a_path_of_no_model_call_takes_no_body() -> None:
    assert "takes no body" in refusal("/", {"model": "m"})

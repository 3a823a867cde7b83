"""Calls of a model that nobody might count: each is refused, or counted at its cost. `pytest -s` prints them."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_model_proxy import At
from tests.support import wait_for
from worker.runners.pricing import Tokens, compute_usage
from worker.runners.sandbox import call_log
from worker.runners.sandbox.call_log import CallLog, call_log_path, read_adopted_calls
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
from worker.runners.sandbox.model_proxy import ProxyServer

PRICES = {"input": 1.0, "output": 5.0, "cache_read": 0.1, "dear": {"input": 10.0, "output": 50.0}}
#: What every answer uses; what the cache holds of it is in ``cached`` and ``hour`` of the request's ``metadata``.
USED = Tokens(input_tokens=100_000, output_tokens=2_000)
PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/chat/completions", "/responses", "/responses/compact")
PIECES = 40
ROWS: list[tuple[str, float, float, str]] = []


class Provider:
    """A model service that knows what it is owed: ``owed`` in US dollars, for whatever it was asked."""

    def __init__(self) -> None:
        self.owed, self.asked = 0.0, 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                provider.asked += 1
                if body.get("metadata", {}).get("fails"):
                    self._send(b'{"error": {"type": "invalid_request_error"}}', 400)
                elif body.get("stream"):
                    provider.owed += 1e-6 * PIECES * 5  # of a stream that is left: what was said
                    self._stream(body)
                elif not self.path.endswith("count_tokens"):
                    provider.owed += cost(body)
                    self._send(json.dumps(answer(self.path, body)).encode())
                else:
                    self._send(b'{"input_tokens": 1}')

            def _send(self, said: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def _stream(self, body: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                with contextlib.suppress(OSError):
                    for _ in range(PIECES):
                        piece = {"choices": [{"delta": {"content": "word "}}]}
                        self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
                    self.wfile.flush()
                    if body.get("metadata", {}).get("hangs"):
                        provider.over.wait(60)
                    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
                    self.wfile.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())

        self.over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads, self.server.block_on_close = True, False
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


def cost(body: dict[str, Any]) -> float:
    """What a provider asks for a call."""
    price = PRICES["dear"] if body.get("model") == "dear" or body.get("models") else PRICES
    assert isinstance(price, dict)
    factor = {"priority": 2.0, "fast": 6.0}.get(body.get("service_tier") or body.get("speed") or "", 1.0)
    more = 0.01 * len(body.get("tools") or ()) + 0.05 * bool(body.get("container"))
    hour, cached = (body.get("metadata", {}).get(name, 0) for name in ("hour", "cached"))
    plain = USED.input_tokens - hour - cached
    taken = plain * price["input"] + hour * 2 * price["input"] + cached * 0.1 * price["input"]
    return float(factor * (taken + USED.output_tokens * price["output"]) / 1e6 + more)


def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    hour, cached = (body.get("metadata", {}).get(name, 0) for name in ("hour", "cached"))
    if "messages" in path:
        usage = {"input_tokens": USED.input_tokens - hour - cached, "output_tokens": USED.output_tokens}
        usage |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": hour}
        return {
            "stop_reason": "end_turn",
            "usage": usage | {"cache_creation": {"ephemeral_1h_input_tokens": hour}},  # type: ignore[dict-item]
        }
    details = {"cached_tokens": cached}
    if "chat" in path:
        usage = {"prompt_tokens": USED.input_tokens, "completion_tokens": USED.output_tokens}
        return {"choices": [{"finish_reason": "stop"}], "usage": {**usage, "prompt_tokens_details": details}}
    usage = {"input_tokens": USED.input_tokens, "output_tokens": USED.output_tokens}
    return {"status": "completed", "usage": {**usage, "input_tokens_details": details}}


class Agent:
    """Asks at the model proxy of its run, as any program in its sandbox can."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statuses: list[int] = []

    def ask(
        self, path: str = "/v1/messages", body: bytes = b"", *, read: int = -1, head: bool = True, **more: Any
    ) -> None:
        said = body or json.dumps({"model": "m", "messages": [], **more}).encode()
        with contextlib.closing(At(self.path)) as http:
            http.request("POST", path, said, {"content-type": "application/json"})
            if head:
                found = http.getresponse()
                self.statuses.append(found.status)
                found.read(read if read >= 0 else None)

    def together(self, count: int) -> None:
        threads = [threading.Thread(target=self.ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def refused_between(self, count: int) -> None:
        for _ in range(5):
            self.ask()
        for _ in range(count):
            self.ask(metadata={"fails": True})
        self.ask()


def twice(name: str, first: str, second: str) -> bytes:
    return f'{{"messages": [], "{name}": "{first}", "{name}": "{second}"}}'.encode()


WEB = {"type": "web_search_20250305", "name": "web_search"}
#: What its provider answered, and whether it left the sandbox at all.
WAYS: dict[str, Callable[[Agent], object]] = {
    "ten calls beside its own": lambda agent: [agent.ask() for _ in range(11)],
    "calls by every API": lambda agent: [agent.ask(path) for path in PATHS],
    "many calls at once": lambda agent: agent.together(8),
    "more refused calls behind its own than are kept": lambda agent: agent.refused_between(60),
    "a dear model that the block names": lambda agent: agent.ask(model="dear"),
    "compaction": lambda agent: agent.ask("/responses/compact", model="dear", input=[]),
    "what the cache holds": lambda agent: agent.ask(metadata={"cached": 90_000}),
    "what the cache holds, in OpenAI's words": lambda agent: agent.ask("/responses", input=[], metadata={"cached": 9}),
    "written into the cache for an hour": lambda agent: agent.ask(metadata={"hour": 90_000}),
    "a stream without its usage": lambda agent: agent.ask("/chat/completions", stream=True),
    "leave a stream before its end": lambda agent: agent.ask(
        "/chat/completions", stream=True, read=1_000, metadata={"hangs": True}
    ),
}
REFUSED: dict[str, Callable[[Agent], object]] = {
    "a model that nobody named": lambda agent: agent.ask(model="dearest"),
    "a model in other letters": lambda agent: agent.ask(model="DEAR"),
    "a web search by the model's name": lambda agent: agent.ask(model="m:online"),
    "the model named twice": lambda agent: agent.ask(body=twice("model", "m", "dear")),
    "models to fall back on": lambda agent: agent.ask("/chat/completions", models=["dear"]),
    "a fallback of the provider": lambda agent: agent.ask(fallbacks=[{"model": "dear"}]),
    "a dearer service tier": lambda agent: agent.ask(service_tier="priority"),
    "a faster, dearer answer": lambda agent: agent.ask(speed="fast"),
    "a place that costs more": lambda agent: agent.ask(inference_geo="us"),
    "a search that costs by itself": lambda agent: agent.ask(tools=[WEB]),
    "a search, in other letters": lambda agent: agent.ask(tools=[{"Type": WEB["type"], "name": "x"}]),
    "a search in a namespace": lambda agent: agent.ask(
        "/responses", input=[], tools=[{"type": "namespace", "tools": [{"type": "web_search"}]}]
    ),
    "another model as a tool": lambda agent: agent.ask(tools=[{"type": "advisor_20260301", "name": "x"}]),
    "a container by the hour": lambda agent: agent.ask(container="c"),
    "images by a tool": lambda agent: agent.ask("/responses", input=[], tools=[{"type": "image_generation"}]),
    "sound": lambda agent: agent.ask("/chat/completions", modalities=["audio"], audio={"voice": "x"}),
    "an answer in the background": lambda agent: agent.ask("/responses", input=[], background=True),
    "what an earlier answer knew": lambda agent: agent.ask("/responses", input=[], previous_response_id="r"),
    "a batch": lambda agent: agent.ask("/v1/messages/batches"),
    "another key in the query": lambda agent: agent.ask("/v1/messages?key=mine"),
    "fields that are no JSON": lambda agent: agent.ask(body=b'{"model": "m", "temperature": NaN}'),
}


@pytest.fixture(autouse=True, scope="module")
def table() -> Iterator[None]:
    yield
    print("\n| a call that nobody might count | it costs $ | counted $ | |\n| --- | --- | --- | --- |")
    for way, owed, counted, said in ROWS:
        print(f"| {way} | {owed:.4f} | {counted:.4f} | {said} |")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setattr(call_log, "MOST_CALLS", 50)
    made = Provider()
    yield made
    made.over.set()
    made.server.shutdown()
    made.server.server_close()


def played(way: Callable[[Agent], object], provider: Provider, calls: Path) -> tuple[Agent, float]:
    """What is counted of a way, as the worker sees it, and as who adopts the run from its dead worker does."""
    url = f"http://127.0.0.1:{provider.server.server_address[1]}"
    leads = Upstream(url=url, paths=frozenset(PATHS), models=("m", "dear"))
    proxy_server, record = ProxyServer(), CallLog(call_log_path(calls))
    with proxy_server.open_socket_proxy(AllowedDestinations(upstream=leads), record) as path:
        agent = Agent(path)
        way(agent)
        wait_for(lambda: all(call.ended for call in record.observed_calls().calls))
    proxy_server.close()
    found = read_adopted_calls(calls)
    assert found is not None
    assert found.counted_tokens == record.observed_calls().counted_tokens
    return agent, float(
        compute_usage({"cost_usd": 0.0}, record.observed_calls().counted_tokens, PRICES).get("cost_usd", 0.0)
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_leaves_is_counted_at_what_it_costs_at_least(way: str, provider: Provider, tmp_path: Path) -> None:
    agent, counted = played(WAYS[way], provider, tmp_path / "1-1")
    ROWS.append((way, provider.owed, counted, "counted"))
    assert 200 in agent.statuses
    assert provider.owed > 0
    assert counted >= provider.owed - 1e-9


@pytest.mark.parametrize("way", REFUSED)
def test_a_call_whose_price_nobody_knows_never_leaves(way: str, provider: Provider, tmp_path: Path) -> None:
    agent, counted = played(lambda one: [REFUSED[way](one), one.ask()], provider, tmp_path / "1-1")
    ROWS.append((way, 0.0, counted - cost({}), "refused"))
    assert agent.statuses[0] in {400, 403}
    assert (agent.statuses[1], provider.asked) == (200, 1), "only the call behind it left"
    assert counted == pytest.approx(provider.owed)

"""The HTTP side of the tool gateway: whose run a request is of, what it may be, and agents that leave."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("mcp")

from mcp_types import CallToolResult

from tests.support import wait_until
from tests.tools import forbidden
from tests.tools.played import SERVER, Played, Run, text
from worker.plugins.tools.call_policy import CallRule
from worker.plugins.tools.gateway_process import AgentConnection, GatewayServer
from worker.runners.base import ToolAccess
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
from worker.runners.sandbox.model_proxy import ProxyServer

HEAD = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def body(name: str = "s__write", **arguments: Any) -> bytes:
    call = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()


class Served:
    """A gateway server with one run, whose secret is ``mine``."""

    def __init__(self, played: Played, path: Path) -> None:
        me: Any = played
        self.server, self.played, self.path = GatewayServer(me, me, me), played, path
        self.run: Run = played.run()
        self.server._runs["mine"] = self.run

    async def send(self, sent: bytes, method: str = "POST", **head: str) -> httpx2.Response:
        transport = httpx2.AsyncHTTPTransport(uds=str(self.path))
        headers = {**HEAD, "x-helix-run": "mine", **{name.replace("_", "-"): value for name, value in head.items()}}
        async with httpx2.AsyncClient(transport=transport, timeout=60) as client:
            return await client.request(method, "http://gateway/helix-tools/mcp", content=sent, headers=headers)

    async def say(self, **arguments: Any) -> str:
        return (await self.send(body(**arguments))).json()["result"]["content"][0]["text"]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    made = Served(Played(), tmp_path / "s")
    task = asyncio.create_task(made.server.serve_requests(listener))
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_request_needs_the_secret_of_an_open_run_and_is_a_post(served: Served) -> None:
    assert await served.say(n=1) == "ok"
    refused = [await served.send(body(), x_helix_run=secret) for secret in ("", "other", "MINE", "mine,mine")]
    assert [each.status_code for each in refused] == [403] * 4
    for method in ("GET", "DELETE", "PUT"):
        assert (await served.send(b"", method)).status_code == 405
    made = len(served.played.made)
    served.server.close_run("mine")
    assert (await served.send(body())).status_code == 403
    assert "This run has ended" in (await served.run.call_tool("s__write", {}, asyncio.Event())).content[0].text
    assert len(served.played.made) == made


async def test_a_call_lists_no_tools_and_its_headers_must_agree_with_its_arguments(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "string", "x-mcp-header": "Note"}}}
    listed = await served.run.list_tools()
    served.run.schemas[listed[0].name] = schema
    monkeypatch.setattr(served.played, "list_tools", None)
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    call = {"name": "s__write", "arguments": {"n": "a"}, "_meta": meta}
    sent = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    head = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": "s__write"}
    answers = [await served.send(sent, **head, mcp_param_note=note) for note in ("a", "b")]
    assert [each.status_code for each in answers] == [200, 400], [each.text for each in answers]
    assert served.played.made == [{"n": "a"}]


async def test_of_doubled_keys_the_one_that_is_judged_is_the_one_that_leaves_and_other_forms_do_not(
    served: Served,
) -> None:
    double = body().replace(b'"arguments": {}', b'"arguments": {"n": "good"}, "arguments": {"n": "a", "n": "b"}')
    await served.send(double)
    assert served.played.made == [{"n": "b"}]
    assert json.loads(served.played.rows["00001-00001"].arguments) == {"n": "b"}
    modern = {"mcp_protocol_version": "2026-07-28"}
    surrogate = body().replace(b'"arguments": {}', b'"arguments": {"n": "\\ud800"}')
    deep = body().replace(b'"arguments": {}', b'"arguments": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
    batch = b"[" + body() + b"]"
    for sent in (surrogate, deep, batch, b"{", body() + b"x" * 5 * 2**20):
        for head in ({}, modern):
            assert (await served.send(sent, **head)).status_code in {200, 400, 413, 500}
    assert len(served.played.made) == 1
    assert await served.say(n=1) == "ok", "the server lives"


async def test_a_call_whose_agent_has_hung_up_is_carried_out_once_and_answers_its_repetition(served: Served) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> CallToolResult:
        begun.set()
        await go.wait()
        return text("ok")

    served.played.act = lambda _: slow()
    first = asyncio.create_task(served.send(body(n=1)))
    await begun.wait()
    first.cancel()
    await wait_until(lambda: any(gone.is_set() for gone in served.run._gone.values()))
    again = asyncio.create_task(served.send(body(n=1)))
    await wait_until(lambda: any(row.earlier for row in served.run._rows.values()))
    go.set()
    said = (await again).json()["result"]["content"]
    assert [len(served.played.made), "was not made again" in said[-1]["text"]] == [1, True]
    assert await served.say(n=1) == "ok"
    assert await served.say(n=1) == "ok", "an agent that waited for its answer makes equal calls"
    assert len(served.played.made) == 3


async def test_an_agent_that_closes_its_connection_after_the_answer_has_got_it() -> None:
    received: list[dict[str, str]] = []

    async def receive() -> dict[str, str]:
        return received.pop(0)

    async def send(_: Any) -> None:
        pass

    for answered in (False, True):
        received[:] = [{"type": "http.request"}, {"type": "http.disconnect"}]
        agent = AgentConnection(receive, send)
        await agent.receive()
        if answered:
            await agent.send({"type": "http.response.body"})
        assert (await agent.receive())["type"] == "http.disconnect"
        assert agent.gone.is_set() is not answered


async def test_after_the_death_of_the_worker_no_call_begins(served: Served) -> None:
    await served.server.end_calls()
    assert "This run has ended" in await served.say(n=1)
    assert served.played.made == []


async def send_bytes(proxy: Path, sent: bytes, *, ends: bool = False) -> bytes:
    """Send bytes over a connection of their own, which then ``ends``, and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(proxy)
    writer.write(sent)
    if ends:
        writer.write_eof()
    said = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65_536):
            said += piece
    writer.close()
    return said


async def test_messages_and_requests_of_other_forms_reach_nothing_that_the_policy_forbids(served: Served) -> None:
    rules = (CallRule(tool="write", do="allow", arguments={"note": "free *"}),)
    served.played.server = replace(SERVER, writes="deny", rules=rules)
    served.server._runs["mine"] = served.played.run()
    others = (replace(SERVER), replace(SERVER, name="theirs"))
    served.server._runs["theirs"] = served.played.run(2, turn_id="u", servers=others)
    tools = Upstream.of_tools(ToolAccess(socket=served.path, secret="mine"))
    tried = [(sent, False) for sent in forbidden.list_messages()] + [(sent, True) for sent in forbidden.list_requests()]
    with closing(ProxyServer()) as proxies, proxies.open_socket_proxy(AllowedDestinations(tools=tools)) as proxy:
        for sent, ends in tried:
            await send_bytes(proxy, sent, ends=ends)
            wrong = [each for each in served.played.made if each not in (forbidden.FREE, {})]
            assert not wrong, sent[:1_000]
        assert b"ok" in await send_bytes(proxy, forbidden.request(body(note="free 2"), Connection="close"))
    assert len(tried) > 150
    assert [each for each in served.played.made if each not in (forbidden.FREE, {})] == [{"note": "free 2"}]

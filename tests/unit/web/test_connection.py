"""Connections that ask for nothing, or for no HTTP: closed, and told why where that can be said."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from api_client.web.app import client_connection
from tests.support import wait_until

#: A client that sent these bytes; what it heard until the connection was closed.
Talk = Callable[[bytes], Any]


async def _slow_app(scope: Any, receive: Any, send: Any) -> None:
    """Answers much later than a head may take."""
    await asyncio.sleep(client_connection.HEAD_SECONDS * 4)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b"late, and whole"})


@pytest.fixture
async def talk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talk]:
    """What is sent lies in the kernel before the server looks: a slow machine makes no request late."""
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 0.2)
    config = uvicorn.Config(_slow_app, http=client_connection.ClientConnection, log_config=None, lifespan="off")
    config.load()
    servers = []

    async def talk(data: bytes) -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        client.sendall(data)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        made = lambda: client_connection.ClientConnection(config, ServerState(), {})  # noqa: E731 - a protocol factory
        servers.append(await loop.create_server(made, sock=listener))
        heard = b""
        with client:
            while piece := await loop.sock_recv(client, 65_536):
                heard += piece
        return heard

    yield talk
    for server in servers:
        server.close()


async def test_a_client_that_sends_a_head_of_megabytes_reads_why_it_is_refused() -> None:
    config = uvicorn.Config(_slow_app, http=client_connection.ClientConnection, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    made = lambda: client_connection.ClientConnection(config, state, {})  # noqa: E731 - a protocol factory
    async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 10_000_000)
        await asyncio.wait_for(writer.drain(), 60)
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert "longer than 16,384 bytes" in json.loads(body)["error"]["message"]
        writer.close()
        await wait_until(lambda: not state.connections)


async def test_a_refused_client_that_never_closes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "_LINGER_SECONDS", 0.1)
    config = uvicorn.Config(_slow_app, http=client_connection.ClientConnection, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    made = lambda: client_connection.ClientConnection(config, state, {})  # noqa: E731 - a protocol factory
    async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"no HTTP\r\n\r\n")
        await wait_until(lambda: state.connections)
        await wait_until(lambda: not state.connections)
        writer.close()


@pytest.mark.parametrize(
    "head", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: "], ids=["none", "line", "header"]
)
async def test_a_head_that_never_ends_is_not_waited_for(talk: Talk, head: bytes) -> None:
    assert await talk(head) == b""


async def test_a_request_that_came_whole_may_take_as_long_as_it_needs(talk: Talk) -> None:
    assert (await talk(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(b"late, and whole\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["TLS", "negative length", "no host"],
)
async def test_what_is_no_http_is_told_so_with_the_error_object(talk: Talk, data: bytes) -> None:
    head, _, body = (await talk(data)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head.lower()
    assert b"x-request-id: req-" in head.lower()
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


class Crowd:
    """A server with room for eight, and its clients by the address that they come from."""

    def __init__(self, app: Any = _hello, trusted: tuple[str, ...] = ()) -> None:
        self.config = uvicorn.Config(app, http=client_connection.ClientConnection, log_config=None, lifespan="off")
        self.config.load()
        self.state = ServerState()
        kind = client_connection.ClientConnection.with_limits(8, trusted)
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self.starting = loop.create_server(lambda: kind(self.config, self.state, {}), sock=listener)
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Crowd:
        self.server = await self.starting
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.close()
        self.server.close()

    async def connect(self, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self.writers.append(writer)
        await wait_until(lambda: reader.at_eof() or self._knows(writer))
        return reader, writer

    async def ask(self, path: str = "/", address: str = "127.0.0.1") -> int:
        reader, writer = await self.connect(address)
        return await asked(reader, writer, path)

    def _knows(self, writer: asyncio.StreamWriter) -> bool:
        name = writer.get_extra_info("sockname")
        return any(getattr(each, "client", None) == name[:2] for each in self.state.connections)


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = "/") -> int:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    return int(head.split()[1])


async def test_idle_connections_keep_nobody_out_not_even_from_their_own_address() -> None:
    async with Crowd() as crowd:
        idle = [await crowd.connect("127.0.0.2") for _ in range(20)]
        assert len(crowd.state.connections) == 8
        assert await crowd.ask("/healthz") == 200
        assert await crowd.ask("/any", "127.0.0.2") == 200
        assert await asked(*idle[-1]) == 200, "those that came last are kept"


async def test_the_address_with_most_idle_connections_makes_room() -> None:
    async with Crowd() as crowd:
        first = await crowd.connect("127.0.0.1")
        for _ in range(20):
            await crowd.connect("127.0.0.2")
        assert await asked(*first) == 200
        assert await asked(*first) == 200, "kept alive, and idle again"
        for _ in range(20):
            await crowd.connect("127.0.0.2")
        assert await asked(*first) == 200


async def test_a_full_relay_that_is_at_work_refuses_and_still_answers_health() -> None:
    go = asyncio.Event()

    async def working(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/work":
            await go.wait()
        await _hello(scope, receive, send)

    async with Crowd(working) as crowd:
        at_work = [await crowd.connect() for _ in range(8)]
        for _, writer in at_work:
            writer.write(b"GET /work HTTP/1.1\r\nHost: a\r\n\r\n")
        await wait_until(lambda: len(crowd.state.tasks) == 8)
        reader, writer = await crowd.connect()
        assert await asked(reader, writer, "/v1/models") == 503
        assert json.loads(await asyncio.wait_for(reader.read(), 60))["error"]["code"] == "too_many_connections"
        assert [await crowd.ask("/healthz"), await crowd.ask("/readyz")] == [200, 200]
        go.set()
        for reader, _ in at_work:
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)


async def test_a_trusted_proxys_idle_connections_are_left_alone() -> None:
    async with Crowd(trusted=("127.0.0.3",)) as crowd:
        proxys = [await crowd.connect("127.0.0.3") for _ in range(7)]
        for _ in range(5):
            await crowd.connect("127.0.0.2")
        assert [await asked(*each) for each in proxys] == [200] * 7


async def test_a_client_that_never_sends_a_byte_is_not_waited_for_as_long_as_for_a_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "FIRST_BYTE_SECONDS", 0.2)
    monkeypatch.setattr(client_connection, "HEAD_SECONDS", 3600.0)
    async with Crowd() as crowd:
        silent, begun = await crowd.connect(), await crowd.connect()
        begun[1].write(b"GET / HT")
        assert await asyncio.wait_for(silent[0].read(), 60) == b""
        begun[1].write(b"TP/1.1\r\nHost: a\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(begun[0].readuntil(b"\r\n\r\n"), 60)

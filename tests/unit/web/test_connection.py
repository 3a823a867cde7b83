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

from api_client.web import client_connection
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
    config = uvicorn.Config(_slow_app, http=client_connection.Connection, log_config=None, lifespan="off")
    config.load()
    servers = []

    async def talk(data: bytes) -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        client.sendall(data)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        made = lambda: client_connection.Connection(config, ServerState(), {})  # noqa: E731 - a protocol factory
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
    config = uvicorn.Config(_slow_app, http=client_connection.Connection, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    made = lambda: client_connection.Connection(config, state, {})  # noqa: E731 - a protocol factory
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
    config = uvicorn.Config(_slow_app, http=client_connection.Connection, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    made = lambda: client_connection.Connection(config, state, {})  # noqa: E731 - a protocol factory
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

"""The model proxy before a tool gateway: connections are kept on both sides, and each request is checked."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import wait_until
from worker.runners.base import ToolAccess
from worker.runners.sandbox import model_proxy
from worker.runners.sandbox.call_log import CallLog
from worker.runners.sandbox.destinations import TOOLS_PATH, AllowedDestinations, Upstream
from worker.runners.sandbox.model_proxy import ProxyServer


class Gateway:
    """A tool gateway that echoes bodies, and remembers its connections and the secrets that it got."""

    def __init__(self) -> None:
        self.connections, self.left = 0, 0
        self.secrets: list[bytes] = []
        self.go = asyncio.Event()
        self.go.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                self.secrets.append(fields[b"x-helix-run"])
                body = await reader.readexactly(int(fields[b"content-length"]))
                await self.go.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        self.left += 1
        writer.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    made = Gateway()
    async with await asyncio.start_unix_server(made.serve, tmp_path / "gateway"):
        yield made


@pytest.fixture
def server() -> Iterator[ProxyServer]:
    made = ProxyServer()
    yield made
    made.close()


@pytest.fixture
def tools(gateway: Gateway, tmp_path: Path) -> AllowedDestinations:
    return AllowedDestinations(tools=Upstream.of_tools(ToolAccess(socket=tmp_path / "gateway", secret="mine")))


@pytest.fixture
def proxy(server: ProxyServer, tools: AllowedDestinations) -> Iterator[Path]:
    with server.open_socket_proxy(tools) as path:
        yield path


def request(body: bytes, path: str = TOOLS_PATH, **head: str) -> bytes:
    fields = {"host": "a", "content-length": str(len(body)), "x-helix-run": "theirs", **head}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return status, body, and whether the connection is kept."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(size), b"connection: close" not in head


async def test_calls_share_a_connection_on_both_sides_and_each_is_checked(gateway: Gateway, proxy: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(proxy)
    for body in (b"one", b"", b"x" * 100_000):
        writer.write(request(body))
        assert await response(reader) == (200, body, True)
    gateway.go.clear()
    writer.write(request(b"four"))
    await wait_until(lambda: len(gateway.secrets) == 4)
    writer.write(request(b"five"))
    gateway.go.set()
    assert [await response(reader) for _ in range(2)] == [(200, b"four", True), (200, b"five", True)]
    assert (gateway.connections, set(gateway.secrets)) == (1, {b"mine"})
    writer.write(request(b"six", "/v1/messages"))
    assert (await response(reader))[::2] == (403, False)
    assert await reader.read() == b""
    writer.close()


async def test_who_wants_its_connection_closed_or_leaves_gets_it_so(gateway: Gateway, proxy: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(proxy)
    writer.write(request(b"one", connection="close"))
    assert await response(reader) == (200, b"one", False)
    assert await reader.read() == b""
    gateway.go.clear()
    _, leaves = await asyncio.open_unix_connection(proxy)
    leaves.write(request(b"two"))
    await wait_until(lambda: len(gateway.secrets) == 2)
    leaves.close()
    gateway.go.set()
    await wait_until(lambda: gateway.left == 1)
    writer.close()


async def test_many_connections_are_not_kept_so_that_others_get_in(gateway: Gateway, proxy: Path) -> None:
    opened = [await asyncio.open_unix_connection(proxy) for _ in range(model_proxy.MAX_CONNECTIONS)]
    for _, writer in opened:
        writer.write(request(b"a"))
    kept = [(await response(reader))[2] for reader, _ in opened]
    assert not all(kept)
    for _, writer in opened:
        writer.close()


def find_peer(address: tuple[str, int]) -> socket.socket:
    """Return a copy of this process's socket that is connected to the address."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found = socket.fromfd(int(entry.name), socket.AF_INET, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                if found.getpeername() == address:
                    return found
            found.close()
    raise AssertionError(address)


async def test_a_response_on_the_loopback_does_not_wait_for_the_acknowledgement_of_its_head(
    server: ProxyServer, tools: AllowedDestinations
) -> None:
    with server.open_loopback_proxy(tools, CallLog()) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(request(b"one", urlsplit(url).path + TOOLS_PATH))
        assert await response(reader) == (200, b"one", True)
        with find_peer(writer.get_extra_info("sockname")) as peer:
            assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()

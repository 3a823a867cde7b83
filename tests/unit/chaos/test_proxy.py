"""The proxy between the parts: it passes on, and delays, stalls, deafens and cuts when told to."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as aioredis
from redis.exceptions import TimeoutError as StoreTimeout

from tests.chaos import store
from tests.chaos.proxy import Wire


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1000):
        writer.write(piece)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def connected(wire: Wire) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(wire.listen.removeprefix("unix:"))
    yield reader, writer
    writer.close()


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(await asyncio.start_unix_server(echo, tmp_path / "far"))
        made = Wire(f"unix:{tmp_path / 'near'}", f"unix:{tmp_path / 'far'}")
        await made.serve()
        yield made
        made.cut()


async def answer(reader: asyncio.StreamReader, seconds: float = 60.0) -> bytes:
    return await asyncio.wait_for(reader.read(1000), seconds)


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await answer(reader) == b""
    except ConnectionError:
        return True


async def test_what_comes_in_comes_out_at_the_other_end(wire: Wire) -> None:
    async with connected(wire) as (reader, writer):
        writer.write(b"hello")
        assert await answer(reader) == b"hello"


async def test_a_delay_holds_up_each_direction(wire: Wire) -> None:
    wire.delay = 0.1
    async with connected(wire) as (reader, writer):
        begun = time.monotonic()
        writer.write(b"hello")
        assert await answer(reader) == b"hello"
        assert time.monotonic() - begun >= 0.2


async def test_a_stalled_link_keeps_its_connections_and_passes_everything_once_healed(wire: Wire) -> None:
    async with connected(wire) as (reader, writer):
        wire.stall()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await answer(reader, 0.2)
        wire.heal()
        assert await answer(reader) == b"hello"


async def test_a_deaf_link_loses_answers_and_is_cut_when_it_heals(wire: Wire) -> None:
    async with connected(wire) as (reader, writer):
        wire.deaf = True
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await answer(reader, 0.2)
        wire.heal()
        assert await ended(reader)


async def test_a_cut_resets_every_connection_and_new_ones_work(wire: Wire) -> None:
    async with connected(wire) as (reader, writer):
        writer.write(b"hello")
        assert await answer(reader) == b"hello"
        wire.cut()
        assert await ended(reader)
    async with connected(wire) as (reader, writer):
        writer.write(b"again")
        assert await answer(reader) == b"again"


async def test_without_a_far_end_a_connection_is_reset(tmp_path: Path) -> None:
    wire = Wire(f"unix:{tmp_path / 'near'}", f"unix:{tmp_path / 'nowhere'}")
    await wire.serve()
    async with connected(wire) as (reader, _):
        assert await ended(reader)


# The laboratory's connections to a store that hangs.

#: More than the kernel takes for a reader that never reads.
PENDING = b"x" * 16_000_000


@pytest.fixture
async def hanging() -> AsyncIterator[int]:
    """A store's port that takes connections and never reads; so nothing that is pending ever leaves."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0, limit=1)
    yield server.sockets[0].getsockname()[1]
    for writer in taken:
        writer.transport.abort()
    server.close()


async def begun(port: int) -> aioredis.Redis:
    """A client with a connection that has something to send and cannot."""
    client = aioredis.Redis(host="127.0.0.1", port=port, socket_connect_timeout=60.0)
    connection = client.connection_pool.make_connection()
    await connection._connect()
    connection.socket_connect_timeout = 0.2  # so long it waits when it is closed
    connection._writer.write(PENDING)
    client.connection_pool._available_connections.append(connection)
    return client


async def test_a_store_that_hangs_while_it_is_closed_ends_no_run(hanging: int) -> None:
    with pytest.raises(StoreTimeout, match="closing connection"):
        await (await begun(hanging)).aclose()
    await store.close(await begun(hanging))

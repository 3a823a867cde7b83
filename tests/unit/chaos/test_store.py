"""The laboratory's connections to a store that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as aioredis
from redis.exceptions import TimeoutError as StoreTimeout

from tests.chaos import store

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

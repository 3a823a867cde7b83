"""The loop's connection to a real store, and what it uses of redis-py beyond its documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.settings import Settings
from tests.support import wait_until
from worker.processes.broker import EmbeddedBroker
from worker.turns.record.connection import Connection


@pytest.fixture
async def connection(private_settings: Settings) -> AsyncIterator[Connection]:
    made = Connection(private_settings, answer_seconds=1.0)
    yield made
    await made.close()


@pytest.fixture
def store(private_settings: Settings) -> redis.Redis:
    return redis.Redis.from_url(private_settings.redis_url)


async def test_many_commands_at_once_get_their_own_replies_over_one_connection(connection: Connection) -> None:
    async def ask(number: int) -> bool:
        await connection.ask("SET", f"k{number}", b"\xff\x00" * number)
        return bool(await connection.ask("GET", f"k{number}") == b"\xff\x00" * number)

    assert all(await asyncio.gather(*map(ask, range(500))))
    names = [line for line in (await connection.ask("CLIENT", "LIST")).splitlines() if b"cmd=client" in line]
    assert len(names) == 1


async def test_a_refusal_is_an_error_of_its_kind_and_those_behind_it_are_answered(connection: Connection) -> None:
    found: Sequence[Any] = await asyncio.gather(
        connection.ask("HGET", "k"),
        connection.ask("EVALSHA", "0" * 40, 0),
        connection.ask("PING"),
        return_exceptions=True,
    )
    assert isinstance(found[0], ResponseError)
    assert isinstance(found[1], NoScriptError)
    assert found[2] == b"PONG"


async def test_a_large_reply_that_comes_in_pieces_is_whole(connection: Connection) -> None:
    await connection.ask("SET", "large", b"x" * 3_000_000)
    large, small = await asyncio.gather(connection.ask("GET", "large"), connection.ask("PING"))
    assert (len(large), small) == (3_000_000, b"PONG")


async def test_commands_in_line_fail_when_the_connection_is_lost_and_the_next_makes_another(
    connection: Connection, store: redis.Redis
) -> None:
    await connection.ask("PING")
    waiting = asyncio.ensure_future(connection.ask("BLPOP", "never", 0))
    await wait_until(lambda: [client for client in store.client_list() if client["cmd"] == "blpop"])
    [blocked] = [client for client in store.client_list() if client["cmd"] == "blpop"]
    store.client_kill_filter(_id=blocked["id"])
    with pytest.raises(RedisConnectionError):
        await waiting
    assert await connection.ask("PING") == b"PONG"


async def test_a_store_that_owes_an_answer_is_given_up(connection: Connection) -> None:
    with pytest.raises(RedisTimeoutError):
        await connection.ask("BLPOP", "never", 0)
    assert await connection.ask("PING") == b"PONG"


async def test_a_store_with_a_password_is_signed_in_to(private_broker: EmbeddedBroker, store: redis.Redis) -> None:
    url = store.connection_pool.connection_kwargs
    store.config_set("requirepass", "geheim")
    signed = f"unix://:geheim@{url['path']}" if "path" in url else f"redis://:geheim@{url['host']}:{url['port']}/0"
    made = Connection(replace(Settings(), broker_url=signed, store_url=signed))
    try:
        assert await made.ask("PING") == b"PONG"
    finally:
        await made.close()
        store.config_set("requirepass", "")


async def test_redis_py_hands_over_its_transport_and_knows_the_kinds_of_errors(private_settings: Settings) -> None:
    made = redis.asyncio.ConnectionPool.from_url(private_settings.redis_url).make_connection()
    await made.connect()
    assert isinstance(made._writer.transport, asyncio.WriteTransport)
    assert isinstance(made._parser.parse_error("NOSCRIPT No matching script"), NoScriptError)
    await made.disconnect()

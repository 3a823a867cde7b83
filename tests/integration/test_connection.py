"""The connection that a loop shares to a real store, and what it uses of redis-py beyond its documents."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.store import Store
from api_client.store.commands import load_plain_script
from api_client.store.connecting import open_blocking_store, open_store
from api_client.store.connection import Connection
from tests.ports import free_port
from tests.proxy import LossyProxy
from tests.support import certificate, wait_until
from worker.processes.embedded_broker import EmbeddedBroker


@pytest.fixture
async def connection(private_settings: Settings) -> AsyncIterator[Connection]:
    made = Connection(private_settings, answer_seconds=60.0)
    yield made
    await made.close()


@pytest.fixture
def store(private_settings: Settings) -> redis.Redis:
    return redis.Redis.from_url(private_settings.redis_url)


async def test_many_commands_at_once_get_their_own_replies_over_one_connection(connection: Connection) -> None:
    async def ask(number: int) -> bool:
        await connection.send_command("SET", f"k{number}", b"\xff\x00" * number)
        return bool(await connection.send_command("GET", f"k{number}") == b"\xff\x00" * number)

    assert all(await asyncio.gather(*map(ask, range(500))))
    names = [line for line in (await connection.send_command("CLIENT", "LIST")).splitlines() if b"cmd=client" in line]
    assert len(names) == 1


async def test_a_command_leaves_at_once_and_those_asked_for_meanwhile_leave_together(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.send_command("PING")
    line: Any = connection._line
    transport, writes = line._transport, list[bytes]()

    def write(data: bytes) -> None:
        writes.append(data)
        transport.write(data)

    monkeypatch.setattr(line, "_transport", SimpleNamespace(write=write))
    first = asyncio.ensure_future(connection.send_command("ECHO", "first"))
    rest = [asyncio.ensure_future(connection.send_command("ECHO", str(number))) for number in range(20)]
    assert len(writes) == 1
    assert b"first" in writes[0]
    assert [await first, *await asyncio.gather(*rest)] == [b"first", *(str(n).encode() for n in range(20))]
    assert len(writes) == 2


async def _ping_as_worker(settings: Settings) -> None:
    connection = Connection(settings)
    await connection.send_command("PING")
    await connection.close()


async def _ping_as_client(settings: Settings) -> None:
    async with open_store(settings) as store:
        await store.ping()


@pytest.mark.parametrize("ping", [_ping_as_worker, _ping_as_client])
async def test_a_connection_signs_in_by_one_command(
    ping: Callable[[Settings], Awaitable[None]], private_settings: Settings, store: redis.Redis
) -> None:
    store.config_resetstat()
    await ping(private_settings)
    asked = {name.removeprefix("cmdstat_") for name in store.info("commandstats")}
    assert asked - {"config|resetstat", "info"} == {"hello", "ping"}


async def test_a_refusal_is_an_error_of_its_kind_and_those_behind_it_are_answered(connection: Connection) -> None:
    found: Sequence[Any] = await asyncio.gather(
        connection.send_command("HGET", "k"),
        connection.send_command("EVALSHA", "0" * 40, 0),
        connection.send_command("PING"),
        return_exceptions=True,
    )
    assert isinstance(found[0], ResponseError)
    assert isinstance(found[1], NoScriptError)
    assert found[2] == b"PONG"


async def test_a_large_reply_that_comes_in_pieces_is_whole(connection: Connection) -> None:
    await connection.send_command("SET", "large", b"x" * 3_000_000)
    large, small = await asyncio.gather(connection.send_command("GET", "large"), connection.send_command("PING"))
    assert (len(large), small) == (3_000_000, b"PONG")


async def test_commands_in_line_fail_when_the_connection_is_lost_and_the_next_makes_another(
    connection: Connection, store: redis.Redis
) -> None:
    await connection.send_command("PING")
    waiting = asyncio.ensure_future(connection.send_command("BLPOP", "never", 0))
    await wait_until(lambda: [client for client in store.client_list() if client["cmd"] == "blpop"])
    [blocked] = [client for client in store.client_list() if client["cmd"] == "blpop"]
    store.client_kill_filter(_id=blocked["id"])
    with pytest.raises(RedisConnectionError):
        await waiting
    assert await connection.send_command("PING") == b"PONG"


async def test_a_store_that_owes_an_answer_is_given_up(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_answer_seconds", 1.0)
    with pytest.raises(RedisTimeoutError):
        await connection.send_command("BLPOP", "never", 0)
    monkeypatch.undo()
    assert await connection.send_command("PING") == b"PONG"


async def test_who_goes_away_while_a_connection_is_made_does_not_take_it_from_the_others(
    connection: Connection, store: redis.Redis
) -> None:
    first, *others = [asyncio.ensure_future(connection.send_command("PING")) for _ in range(4)]
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == [b"PONG"] * 3
    assert len([client for client in store.client_list() if client["cmd"] == "ping"]) == 1
    assert first.cancelled()


async def test_the_reply_to_a_cancelled_command_goes_to_nobody_else(connection: Connection, store: redis.Redis) -> None:
    await connection.send_command("PING")
    cancelled, behind = (
        asyncio.ensure_future(connection.send_command(*words)) for words in (("BLPOP", "k", 0), ("ECHO", "b"))
    )
    await wait_until(lambda: [client for client in store.client_list() if client["cmd"] == "blpop"])
    cancelled.cancel()
    store.lpush("k", "a")
    assert await behind == b"b"


async def test_a_store_that_became_a_replica_is_asked_over_a_new_connection(
    connection: Connection, store: redis.Redis
) -> None:
    await connection.send_command("SET", "k", "v")
    before = await connection.send_command("CLIENT", "ID")
    store.replicaof("127.0.0.1", "1")  # nobody is there
    with pytest.raises(ReadOnlyError):
        await connection.send_command("SET", "k", "w")
    store.replicaof("NO", "ONE")
    assert await connection.send_command("SET", "k", "w") == b"OK"
    assert await connection.send_command("CLIENT", "ID") != before


async def test_a_store_that_answers_is_not_given_up_however_long_the_line_is(
    private_settings: Settings, store: redis.Redis
) -> None:
    connection = Connection(private_settings, answer_seconds=600)
    first, second = (asyncio.ensure_future(connection.send_command("BLPOP", key, 0)) for key in ("a", "b"))
    await wait_until(lambda: [client for client in store.client_list() if client["cmd"] == "blpop"])
    line: Any = connection._line
    line._silent_since -= 1000
    store.lpush("a", "1")
    await first
    line._check_silence()
    store.lpush("b", "2")
    assert await second == [b"b", b"2"]
    last = asyncio.ensure_future(connection.send_command("BLPOP", "c", 0))
    await wait_until(lambda: line._waiting)
    line._silent_since -= 1000
    line._check_silence()
    with pytest.raises(RedisTimeoutError):
        await last
    await connection.close()


async def test_a_line_that_owes_nothing_is_not_given_up(connection: Connection) -> None:
    before = await connection.send_command("CLIENT", "ID")
    line: Any = connection._line
    line._silent_since -= 1000
    line._check_silence()
    assert await connection.send_command("CLIENT", "ID") == before


async def test_to_close_while_a_connection_is_made_leaves_none(connection: Connection, store: redis.Redis) -> None:
    asking = asyncio.ensure_future(connection.send_command("PING"))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(RedisConnectionError):
        await asking
    await wait_until(lambda: len(store.client_list()) == 1)


def test_a_client_serves_one_loop_after_another(private_settings: Settings) -> None:
    async def asked() -> Any:
        return await made.send_command("PING")

    made = Store(private_settings)
    assert [asyncio.run(asked()) for _ in range(3)] == [b"PONG"] * 3


async def test_a_client_s_command_whose_reply_is_lost_is_sent_again(
    private_settings: Settings, store: redis.Redis, tmp_path: Path
) -> None:
    with LossyProxy(private_settings.redis_url, tmp_path / "proxy.sock") as proxy:
        made = Store(replace(private_settings, store_url=proxy.url))
        proxy.lose("word")
        assert await made.send_command("RPUSH", "k", "word") == 2
        assert proxy.lost == [b"word"]
        await made.close()


async def test_a_client_s_command_is_sent_again_to_the_store_that_took_over(
    private_settings: Settings, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take_over(_: float) -> None:
        store.replicaof("NO", "ONE")

    made = Store(private_settings)
    await made.send_command("PING")
    store.replicaof("127.0.0.1", "1")
    monkeypatch.setattr("api_client.store.store.asyncio.sleep", take_over)
    assert await made.send_command("SET", "k", "v") == b"OK"
    await made.close()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_hash_is_read_in_either_form_of_the_protocol(protocol: int, private_settings: Settings) -> None:
    made = Store(replace(private_settings, store_url=f"{private_settings.redis_url}?protocol={protocol}"))
    await made.send_command("HSET", "h", "a", "1", "b", "2")
    assert await made.read_hash("h") == {b"a": b"1", b"b": b"2"}
    assert await made.read_hash("none") == {}
    await made.close()


async def test_a_script_that_the_store_does_not_know_is_loaded(
    private_settings: Settings, store: redis.Redis, tmp_path: Path
) -> None:
    path = tmp_path / "own.lua"
    path.write_text("#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])\n")
    made = Store(private_settings)
    assert [await made.run_script(load_plain_script(path), ["k"], [3]) for _ in range(2)] == [3, 6]
    store.script_flush()
    assert await made.run_script(load_plain_script(path), ["k"], [3]) == 9
    await made.close()


async def test_a_store_behind_tls_is_asked_as_any_other(private_settings: Settings, tmp_path: Path) -> None:
    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_unix_connection(private_settings.redis_url.removeprefix("unix://"))
        await asyncio.gather(_copied(reader, on), _copied(back, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate(tmp_path))
    server = await asyncio.start_server(passed_on, "127.0.0.1", 0, ssl=context)
    url = f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?ssl_cert_reqs=none"
    made = Connection(replace(private_settings, store_url=url))
    await made.send_command("SET", "large", b"x" * 3_000_000)
    large, small = await asyncio.gather(made.send_command("GET", "large"), made.send_command("PING"))
    assert (len(large), small) == (3_000_000, b"PONG")
    await made.close()
    server.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_a_store_with_a_password_is_signed_in_to(private_broker: EmbeddedBroker, store: redis.Redis) -> None:
    url = store.connection_pool.connection_kwargs
    store.config_set("requirepass", "geheim")
    signed = f"unix://:geheim@{url['path']}" if "path" in url else f"redis://:geheim@{url['host']}:{url['port']}/0"
    made = Connection(replace(Settings(), broker_url=signed, store_url=signed))
    try:
        assert await made.send_command("PING") == b"PONG"
    finally:
        await made.close()
        store.config_set("requirepass", "")


@pytest.fixture
def fallen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, redis.Redis, redis.Redis]]:
    """Settings of a Sentinel whose master is about to fall, that one, and who takes over then."""
    with EmbeddedBroker(tmp_path / "a", port=free_port()) as a, EmbeddedBroker(tmp_path / "b", port=free_port()) as b:
        old, new = (redis.Redis(port=each.port) for each in (a, b))

        def master() -> tuple[str, int]:
            return "127.0.0.1", a.port if old.role()[0] == b"master" else b.port

        async def master_of(_: object, name: str) -> tuple[str, int]:
            return master()

        monkeypatch.setattr("redis.sentinel.Sentinel.discover_master", lambda _, name: master())
        monkeypatch.setattr("redis.asyncio.sentinel.Sentinel.discover_master", master_of)
        yield replace(Settings(), store_url="sentinel://127.0.0.1:1/turns/0"), old, new


async def _in_flight(old: redis.Redis, new: redis.Redis, asked: asyncio.Future[Any]) -> Any:
    """Let the master fall while it owes an answer; the answer."""
    await wait_until(lambda: [each for each in old.client_list() if each["cmd"] == "set"])
    old.replicaof("127.0.0.1", str(new.connection_pool.connection_kwargs["port"]))
    old.client_kill_filter(_type="normal")
    return await asked


async def test_a_command_on_its_way_when_a_master_falls_is_sent_again_to_who_took_over(
    fallen: tuple[Settings, redis.Redis, redis.Redis],
) -> None:
    settings, old, new = fallen
    old.client_pause(60_000, all=False)
    async with open_store(settings, answer_seconds=60.0, resends=1) as store:
        assert await _in_flight(old, new, asyncio.ensure_future(store.set("k", "v")))
    assert new.get("k") == b"v"


async def test_a_thread_s_command_on_its_way_when_a_master_falls_is_sent_again_to_who_took_over(
    fallen: tuple[Settings, redis.Redis, redis.Redis],
) -> None:
    settings, old, new = fallen
    old.client_pause(60_000, all=False)
    with open_blocking_store(settings, answer_seconds=60.0, resends=1) as store:
        assert await _in_flight(old, new, asyncio.ensure_future(asyncio.to_thread(store.set, "k", "v")))
    assert new.get("k") == b"v"


async def test_redis_py_hands_over_its_transport_and_knows_the_kinds_of_errors(private_settings: Settings) -> None:
    made = redis.asyncio.ConnectionPool.from_url(private_settings.redis_url).make_connection()
    await made.connect()
    assert isinstance(made._writer.transport, asyncio.WriteTransport)
    assert isinstance(made._parser.parse_error("NOSCRIPT No matching script"), NoScriptError)
    await made.disconnect()


@pytest.mark.parametrize("name", ["nowhere.Provider", "redis.Nothing", "redis.credentials.CredentialProvider.x", "%20"])
def test_a_credential_provider_that_is_not_there_is_named(name: str) -> None:
    settings = replace(Settings(), store_url=f"redis://localhost?credential_provider={name}")
    for opened in (open_store, open_blocking_store):
        with pytest.raises(SettingsError, match="credential_provider="):
            opened(settings)

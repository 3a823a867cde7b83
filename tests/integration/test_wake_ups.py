"""All readers of a client share one connection that listens, miss nothing, and leave no channel behind."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.events import Event
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.turns.channels import LOOK, ChannelSubscriber
from tests.support import passes, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

READERS = 40


@pytest.fixture
def alone(private_settings: Settings) -> Settings:
    """On a broker of the test's own: its connections are counted."""
    return replace(private_settings, ping_seconds=600.0)  # what a bell did not bring would come too late


@pytest.fixture
async def client(alone: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(alone) as made:
        yield made


@pytest.fixture
def store(alone: Settings) -> redis.Redis:
    return redis.Redis.from_url(alone.redis_url)


def subscribers(store: redis.Redis) -> int:
    return len(store.client_list(_type="pubsub"))


async def submit(client: TurnsClient, session_id: str = "s") -> str:
    messages = ({"role": "user", "content": "hi"},)
    return await client.submitter.submit(TurnRequest(model="scripted", messages=messages, session_id=session_id))


async def read(client: TurnsClient, turn_id: str, seen: list[Event]) -> None:
    async for event in client.reader.follow_turn(turn_id):
        if event is not None:
            seen.append(event)  # noqa: PERF401 - others look at it meanwhile


async def follow(
    client: TurnsClient, turn_ids: list[str], readers: int = READERS
) -> tuple[list[asyncio.Task[None]], list[list[Event]]]:
    """Readers of these turns, in turn, each of which has seen the turn's first event."""
    seen: list[list[Event]] = [[] for _ in range(readers)]
    tasks = [asyncio.create_task(read(client, turn_ids[at % len(turn_ids)], seen[at])) for at in range(readers)]
    await wait_until(lambda: all(seen))
    return tasks, seen


async def test_many_readers_of_several_turns_share_one_connection_and_leave_no_channel(
    client: TurnsClient, store: redis.Redis
) -> None:
    turn_ids = [await submit(client, session) for session in "abc"]
    tasks, seen = await follow(client, turn_ids)
    assert subscribers(store) == 1
    for turn_id in turn_ids:
        await client.canceller.cancel(turn_id)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert {tuple(event.kind for event in events) for events in seen} == {("turn.queued", "turn.finished")}
    await wait_until(lambda: not subscribers(store))


async def test_readers_that_leave_disturb_no_other(client: TurnsClient, store: redis.Redis) -> None:
    turn_id, other = await submit(client, "a"), await submit(client, "b")
    tasks, seen = await follow(client, [turn_id, other])
    for task in tasks[:-1]:
        task.cancel()
    await asyncio.gather(*tasks[:-1], return_exceptions=True)
    kept = other if (READERS - 1) % 2 else turn_id
    await wait_until(lambda: len(store.pubsub_channels("*turn:*")) == 1)
    await client.canceller.cancel(kept)
    await asyncio.wait_for(tasks[-1], 60)
    assert [event.kind for event in seen[-1]] == ["turn.queued", "turn.finished"]
    await wait_until(lambda: not subscribers(store))


async def test_readers_go_on_when_their_connection_is_lost(client: TurnsClient, store: redis.Redis) -> None:
    turn_id = await submit(client)
    tasks, seen = await follow(client, [turn_id])
    store.client_kill_filter(_type="pubsub")
    await client.canceller.cancel(turn_id)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert {tuple(event.seq for event in events) for events in seen} == {(1, 2)}


async def test_readers_go_on_when_the_store_was_away_for_longer_than_its_client_tries(
    client: TurnsClient, private_broker: EmbeddedBroker
) -> None:
    turn_id = await submit(client)
    tasks, seen = await follow(client, [turn_id])
    private_broker.kill()
    with pytest.raises(StoreUnavailable):
        await client.reader.read_turn(turn_id)
    await passes(3, "the subscription gives up, too")
    private_broker.start()
    await client.canceller.cancel(turn_id)
    await asyncio.wait_for(asyncio.gather(*tasks), 200)  # long before the first ping
    assert {tuple(event.seq for event in events) for events in seen} == {(1, 2)}


async def test_readers_that_come_and_go_at_once_leave_no_subscription(client: TurnsClient, store: redis.Redis) -> None:
    turn_id = await submit(client)
    for pause in (0, 0, 0.001, 0.002, 0.005):
        tasks = [asyncio.create_task(read(client, turn_id, [])) for _ in range(READERS)]
        await passes(pause, "some are in the middle of subscribing when they leave")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await wait_until(lambda: not subscribers(store))
    seen: list[Event] = []
    last = asyncio.create_task(read(client, turn_id, seen))
    await wait_until(lambda: seen)
    await client.canceller.cancel(turn_id)
    await asyncio.wait_for(last, 60)


async def test_who_comes_after_the_last_reader_listens_over_the_same_connection(
    client: TurnsClient, store: redis.Redis
) -> None:
    used = set()
    for session in "abc":
        turn_id = await submit(client, session)
        [task], _ = await follow(client, [turn_id], readers=1)
        used |= {each["id"] for each in store.client_list(_type="pubsub")}
        await client.canceller.cancel(turn_id)
        await asyncio.wait_for(task, 60)
    assert len(used) == 1


async def test_a_store_that_confirms_nothing_is_asked_over_another_connection(
    client: TurnsClient, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_id, other = await submit(client, "a"), await submit(client, "b")
    tasks, seen = await follow(client, [other], readers=1)
    with monkeypatch.context() as patched:
        patched.setattr("api_client.store.store.Subscription.data_received", lambda *_: None)
        patched.setattr("api_client.turns.channels._CONFIRM_SECONDS", 0.05)
        silent = client.reader.follow_turn(turn_id)
        assert await anext(silent) is None
        await silent.aclose()
    more, seen_more = await follow(client, [turn_id], readers=1)
    for each in (turn_id, other):
        await client.canceller.cancel(each)
    await asyncio.wait_for(asyncio.gather(*tasks, *more), 60)
    assert [[event.kind for event in events] for events in seen + seen_more] == [["turn.queued", "turn.finished"]] * 2


async def test_a_reader_that_may_not_listen_learns_that_the_store_refuses(
    client: TurnsClient, alone: Settings, store: redis.Redis
) -> None:
    turn_id = await submit(client)
    store.acl_setuser("deaf", enabled=True, passwords=["+pw"], commands=["+@all"], keys=["*"], channels=[])
    url = alone.redis_url.replace("unix://", "unix://deaf:pw@").replace("redis://", "redis://deaf:pw@")
    async with TurnsClient(replace(alone, store_url=url, broker_url=url)) as deaf:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(read(deaf, turn_id, []), 60)
    store.acl_deluser("deaf")


async def test_a_reader_that_is_too_slow_is_told_to_read_the_log() -> None:
    ear = ChannelSubscriber()
    for number in range(1_000):
        ear.deliver(b"%d" % number)
    heard = [data async for data in _all(ear)]
    assert heard[0] == LOOK
    assert heard[-1] == b"999"
    assert len(heard) < 300


async def _all(ear: ChannelSubscriber) -> AsyncIterator[bytes]:
    while (data := await ear.next_event(0.01)) is not None:
        yield data

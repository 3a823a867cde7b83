"""Announcing again never piles up messages, and what was lost is announced all the same."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN_QUEUE
from api_client.store.connecting import open_store
from api_client.turns.record.backlog import Backlog, _parse_turn_id
from api_client.workers.reports import count_messages
from tests.integration.lua.by_hand import claimed, request
from tests.on_loop import Ledger, OnLoop
from tests.support import wait_until
from worker.turns.leases.reaper import Reaper


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return replace(settings, announce_seconds=0.2)


class Announcing:
    """A reaper. What it announces of turns that never ran it puts into their queue."""

    def __init__(self, settings: Settings, store: redis.Redis) -> None:
        self._store, self._queue = store, queue_of(settings)
        self.reaper = OnLoop(lambda: Reaper(settings, "w", lambda *_: None))

    def look(self) -> list[str]:
        """The turns whose messages wait after a look."""
        self.reaper.reap_turns()
        return [_parse_turn_id(each) for each in self._store.lrange(self._queue, 0, -1)]


def queue_of(settings: Settings) -> str:
    return f"{settings.namespace}:celery:{RUN_QUEUE}"


def milliseconds(store: redis.Redis) -> int:
    now: Any = store.time()
    return int(now[0] * 1000 + now[1] // 1000)


def overdue(store: redis.Redis, settings: Settings) -> int:
    return len(due_by(store, settings, milliseconds(store)))


def due_by(store: redis.Redis, settings: Settings, at: int) -> set[bytes]:
    """The turns that are due at a time, in ms of the store's clock."""
    return set(store.zrangebyscore(Keys(settings.namespace).due, "-inf", at))


async def submitted(client: TurnsClient, store: redis.Redis, number: int) -> list[str]:
    """Turns of one session each, every one in a millisecond of its own: equal times have no order."""
    ids: list[str] = []
    for place in range(number):
        ids.append(await client.submitter.submit(request(session_id=f"s-{place}")))
        passed = milliseconds(store)
        await wait_until(lambda passed=passed: milliseconds(store) > passed)
    return ids


async def test_while_their_messages_wait_turns_are_not_announced_again(quick: Settings, store: redis.Redis) -> None:
    Ledger(quick, "w").release_turns(0)
    async with TurnsClient(quick) as client:
        for number in range(150):
            await client.submitter.submit(request(session_id=f"s-{number}"))
        assert (store.llen(queue_of(quick)), store.zcard(Keys(quick.namespace).waiting)) == (2, 148)
        each = Announcing(quick, store)
        for _ in range(3):
            await wait_until(lambda: overdue(store, quick) >= 2)
            began = milliseconds(store)
            seen = due_by(store, quick, began)
            assert len(each.look()) == 2
            soon = began + int(quick.announce_seconds * 1000)
            assert not seen & due_by(store, quick, soon - 1), "they hold up nothing that is due"


async def test_a_turn_that_waited_for_its_session_is_looked_for_where_it_was_announced(
    quick: Settings, store: redis.Redis
) -> None:
    async with TurnsClient(quick) as client:
        first, second = [await client.submitter.submit(request()) for _ in range(2)]
        await client.canceller.cancel(first)
        store.rpop(queue_of(quick))  # the first one's
        each = Announcing(quick, store)
        for _ in range(3):
            await wait_until(lambda: overdue(store, quick))
            assert each.look() == [second], "its message still waits"
        store.delete(queue_of(quick))
        await wait_until(lambda: each.look() == [second])


async def test_a_lost_message_is_announced_again_once_the_queue_has_gone_past_it(
    quick: Settings, store: redis.Redis
) -> None:
    async with TurnsClient(quick) as client:
        ids = await submitted(client, store, 2)
        each = Announcing(quick, store)
        store.lpop(queue_of(quick))  # the second turn's
        await wait_until(lambda: overdue(store, quick) == 2)
        assert each.look() == [ids[0]], "the first one's message is older"
        store.rpop(queue_of(quick))
        claimed(Ledger(quick, "w"), ids[0], session_id="s-0")
        await wait_until(lambda: each.look() == [ids[1]])


async def test_with_an_empty_queue_an_unclaimed_turn_is_announced_again(quick: Settings, store: redis.Redis) -> None:
    async with TurnsClient(quick) as client:
        turn_id = await client.submitter.submit(request())
        await wait_until(lambda: store.llen(queue_of(quick)) == 1)
        store.delete(queue_of(quick))
        each = Announcing(quick, store)
        await wait_until(lambda: each.look() == [turn_id])


async def test_a_turn_that_was_claimed_meanwhile_keeps_the_look_at_its_lease(
    quick: Settings, store: redis.Redis
) -> None:
    keys = Keys(quick.namespace)
    async with TurnsClient(quick) as client:
        ids = await submitted(client, store, 2)
        await wait_until(lambda: store.llen(queue_of(quick)) == 2 and overdue(store, quick) == 2)
    backlog = OnLoop(lambda: Backlog(quick, open_store(quick)))
    now = store.time()[0] * 1000 + 999
    due = backlog.list_due(now, 100)
    assert [turn_id for turn_id, _ in due] == ids
    heads = backlog.inner._read_heads

    async def claimed_meanwhile(queues: Any) -> Any:
        await asyncio.to_thread(lambda: claimed(Ledger(quick, "w"), ids[1], session_id="s-1"))
        return await heads(queues)

    backlog.inner._read_heads = claimed_meanwhile
    assert backlog.postpone_waiting(due, now) == set(), "both were read before"
    now = store.time()[0] * 1000 + 999
    assert (store.zscore(keys.due, ids[1]) or 0) > now + 1000 * quick.lease_seconds - 3000
    assert store.hget(keys.turn(ids[1]), "announced") == b"1"


async def test_waiting_turns_are_counted_once_for_each_session_whatever_lies_in_the_queue(
    quick: Settings, store: redis.Redis
) -> None:
    async with TurnsClient(quick) as client:
        ids = [await client.submitter.submit(request(session_id=session)) for session in ("a", "a", "b", "c")]
        assert store.llen(queue_of(quick)) == 2, "one more waits in the fair queue"
        store.lpush(queue_of(quick), *store.lrange(queue_of(quick), 0, -1))
        claimed(Ledger(quick, "w"), ids[3], session_id="c")
        standing, queues = await client.workers.read_state(), await count_messages(client.store)
    assert standing.waiting_by_queue == {"helix.run": 2, "helix.check": 0}
    assert queues["helix.run"] == 4

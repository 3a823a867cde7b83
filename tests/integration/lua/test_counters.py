"""Counters: appended by the command that changes the turn, folded by reapers, and at every moment what readers see."""

from collections import Counter

import redis

from api_client.client import TurnsClient
from api_client.contract.keys import BUCKETS, Keys
from api_client.figures.figure_reader import FigureReader, read_counters
from tests import records
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger


async def test_what_is_pending_counts_for_readers_and_is_folded_once(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    keys = Keys(client.settings.namespace)
    ledger.commit_transition(claimed(ledger, await client.submitter.submit(request())), PASSED)
    pending, now = records.counters(store, keys), client.store
    assert pending["turn.finished|passed|scripted|v2|done|0"] == 1
    at = store.time()[0]
    before = await FigureReader(now).read_totals(), await read_counters(now, at - 3600, at)
    assert before == (pending, pending)
    assert not store.exists(keys.totals)
    for _ in range(2):
        ledger.fold_counters()
    assert store.llen(keys.pending) == 0
    assert (await FigureReader(now).read_totals(), await read_counters(now, at - 3600, at)) == before
    folded = {name: int(value) for name, value in store.hgetall(keys.totals).items()}
    for size in BUCKETS:
        names = store.keys(f"{keys.bucket_key(size, 0).rpartition(':')[0]}:*")
        added: Counter[bytes] = Counter()
        for name in names:
            assert store.ttl(name) > 0
            added.update({field: int(value) for field, value in store.hgetall(name).items()})
        assert added == folded


async def test_two_reapers_that_read_the_same_counters_fold_them_once(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    keys = Keys(client.settings.namespace)
    await client.submitter.submit(request())
    slow = ledger._changes.fold_counters()
    found = ledger._send_command(next(slow))
    late = slow.send(ledger._send_command(slow.send(found)))  # it has read, and was overtaken before it wrote
    await client.submitter.submit(request("2"))
    ledger.fold_counters()
    ledger._send_command(late)
    assert records.counters(store, keys)["turn.submitted"] == 2
    assert int(store.hget(keys.totals, "turn.submitted") or 0) == 2


async def test_a_fold_forgets_finished_turns_behind_their_retention(
    client: TurnsClient, ledger: Ledger, store: redis.Redis
) -> None:
    keys = Keys(client.settings.namespace)
    turn_id = await client.submitter.submit(request())
    ledger.commit_transition(claimed(ledger, turn_id), PASSED)
    store.zadd(keys.finished, {"long-ago": 1})
    ledger.fold_counters()
    assert store.zrange(keys.finished, 0, -1) == [turn_id.encode()]

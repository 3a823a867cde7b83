"""Records as the first landed version wrote them, kept as files: a newer version must still finish them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import keys_of
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import Outcome
from tests.integration.test_engine import GOOD, Bench, says
from tests.support import wait_until

GOLDEN = Path(__file__).parents[1] / "golden" / "records-v1.json"
RECORDS: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    async with TurnsClient(settings) as client:
        made = Bench(settings, client)
        yield made
        made.leases.close()


def restore(settings: Settings, record: dict[str, Any]) -> str:
    """Put a stored turn into this test's store, due now."""
    store = redis.Redis.from_url(settings.redis_url)
    turn_id = record["turn"]["id"]
    keys = keys_of(settings.namespace, turn_id)
    store.hset(keys.turn(turn_id), mapping=record["turn"])
    if record["attempts"]:
        store.hset(keys.attempts(turn_id), mapping=record["attempts"])
    for number, event in enumerate(record["log"], 1):
        store.xadd(keys.log(turn_id), {"e": event}, id=f"{number}-0")
    store.rpush(keys.session(record["turn"]["session_id"]), turn_id)
    store.zadd(keys.due, {turn_id: 1})
    return str(turn_id)


@pytest.mark.parametrize("state", list(RECORDS))
async def test_a_turn_of_the_first_version_is_found_and_finished(state: str, bench: Bench) -> None:
    turn_id = restore(bench.settings, RECORDS[state])
    bench.runner.plays = [says(GOOD)] * 3
    found = await wait_until(
        lambda: (found := bench.ledger.reap(turn_id, may_take=True)).what == "announce" and found, 5
    )
    bench.carry_out(turn_id, Link.parse(found.link), found.session_id)
    turn = await bench.client.get(turn_id)
    assert turn.outcome is not None
    assert turn.outcome.success, turn.error
    events = await bench.events(turn)
    assert [event.seq for event in events] == list(range(1, turn.seq + 1))
    if state != "queued":
        assert turn.outcome in {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY}

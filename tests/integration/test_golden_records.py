"""Records as earlier versions wrote them, kept as files: a newer version must still show and finish them.

``records-v1.json`` is of the first version, ``records-v2.json`` of the next: it stored all texts apart from the record.
"""

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
from tests.integration.engine import GOOD, Bench, says
from tests.support import wait_until

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS: dict[str, dict[str, Any]] = {
    f"{state}-{version}": record
    for version in ("v1", "v2")
    for state, record in json.loads((GOLDEN / f"records-{version}.json").read_text()).items()
}
UNFINISHED = [name for name in RECORDS if not name.startswith("finished")]


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
    for name, fields in ((keys.attempts(turn_id), record["attempts"]), (keys.texts(turn_id), record.get("texts"))):
        if fields:
            store.hset(name, mapping=fields)
    for number, event in enumerate(record["log"], 1):
        store.xadd(keys.log(turn_id), {"e": event}, id=f"{number}-0")
    store.rpush(keys.session(record["turn"]["session_id"]), turn_id)
    store.zadd(keys.due, {turn_id: 1})
    return str(turn_id)


@pytest.mark.parametrize("state", UNFINISHED)
async def test_a_turn_of_an_earlier_version_is_found_and_finished(state: str, bench: Bench) -> None:
    turn_id = restore(bench.settings, RECORDS[state])
    bench.runner.plays = [says(GOOD)] * 3
    found = await wait_until(lambda: (found := bench.ledger.reap(turn_id, may_take=True)).what == "announce" and found)
    bench.carry_out(turn_id, Link.parse(found.link), found.session_id)
    turn = await bench.client.reader.get(turn_id)
    assert turn.outcome is not None
    assert turn.outcome.success, turn.error
    events = await bench.events(turn)
    assert [event.seq for event in events] == list(range(1, turn.seq + 1))
    assert turn.request.prompt == "Wie geht das?"
    assert turn.response
    if not state.startswith("queued"):
        assert turn.outcome in {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY}
    keys, store = keys_of(bench.settings.namespace, turn_id), bench.store
    kept = [name for name in (keys.turn(turn_id), keys.log(turn_id), keys.texts(turn_id)) if store.pttl(name) == -1]
    assert kept == [], "nobody clears these"


async def test_a_turn_that_an_earlier_version_finished_is_shown_whole(bench: Bench) -> None:
    turn = await bench.client.reader.get(restore(bench.settings, RECORDS["finished-v2"]))
    assert (turn.request.prompt, turn.outcome) == ("Wie geht das?", Outcome.PASSED)
    assert turn.response == "So.\n\n<!-- STEP: done -->"

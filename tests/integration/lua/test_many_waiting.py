"""A diagnosis costs the same however many turns wait."""

import time
from typing import Any

import pytest
import redis

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import new_turn_id
from worker.cli.checks import workers


def test_the_doctor_looks_at_the_turns_that_are_due_first_and_says_so(
    settings: Settings, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_PROBE_SECONDS", 0.05)
    keys, now, waiting = Keys(settings.namespace), int(time.time() * 1000), workers.LOOK_AT_MOST + 1000
    pipe = store.pipeline(transaction=False)
    for number in range(waiting):
        turn_id = new_turn_id()
        record = {"state": "queued", "next": "turn.run/1", "model": "scripted", "announced": 1, "created_at": now}
        pipe.hset(keys.turn(turn_id), mapping=record | {"session_id": f"s-{number}", "owner": "local"})
        pipe.zadd(keys.due, {turn_id: now + 60_000 + number})
    pipe.execute()
    store.config_resetstat()
    found = {each.check: each.message for each in workers.check_workers(settings)}
    stats: Any = store.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] <= workers.LOOK_AT_MOST + 10
    assert f"{waiting} unfinished turns" in found["queues"]
    assert found["waiting"].startswith(
        f"{workers.LOOK_AT_MOST} turns of the {workers.LOOK_AT_MOST} that are due first"
    ), found

"""The guard of flow versions on a real store: what it rolls back by itself, and what it leaves (ADR-034)."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.policies.flows import GUARD, Rollback
from tests.on_loop import OnLoop
from worker.plugins.analysis.flow_guard import FlowGuard
from worker.plugins.notifications.gathering import find_rollbacks

BOUNDS = {"v2": {"max_failure_rate": 0.2}, "v3": {"max_failure_rate": 0.2}}


@pytest.fixture
def guarded(settings: Settings) -> Settings:
    return replace(settings, flow_version={"v2": 1, "v3": 1}, flow_settings=BOUNDS, public_url="https://turns.example")


@pytest.fixture
def store(guarded: Settings) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(guarded.redis_url) as found:
        yield found


@pytest.fixture
def rolled_back(guarded: Settings, store: redis.Redis) -> Callable[[], set[str]]:
    """What the guard has rolled back after a round."""

    def look() -> set[str]:
        guard = OnLoop(lambda: FlowGuard(guarded))
        guard.poll()
        store.delete(Keys(guarded.namespace).key_named("flows:guard"))
        flows = store.hgetall(Keys(guarded.namespace).key_named("flows"))
        return {name.decode() for name, text in flows.items() if not Rollback.from_json(text).resumed}

    return look


def fail(store: redis.Redis, settings: Settings, version: str, turns: int = 20) -> None:
    field = f"turn.finished|failed|scripted|{version}|none|0"
    store.hincrby(Keys(settings.namespace).bucket_key("minute", time.time()), field, turns)


def note(store: redis.Redis, settings: Settings, version: str, **more: object) -> None:
    said = Rollback(at=time.time(), by="anna@host", **more)  # type: ignore[arg-type]
    store.hset(Keys(settings.namespace).key_named("flows"), version, said.to_json())


def test_a_version_that_fails_is_rolled_back_while_another_is_left(
    guarded: Settings, store: redis.Redis, rolled_back: Callable[[], set[str]]
) -> None:
    assert rolled_back() == set()
    fail(store, guarded, "v3")
    assert rolled_back() == {"v3"}


def test_the_last_version_is_never_rolled_back(
    guarded: Settings, store: redis.Redis, rolled_back: Callable[[], set[str]]
) -> None:
    fail(store, guarded, "v2")
    fail(store, guarded, "v3")
    assert len(rolled_back()) == 1, "both fail: one of them stays"
    store.delete(Keys(guarded.namespace).key_named("flows"))
    note(store, guarded, "v2")
    assert rolled_back() == {"v2"}, "a person rolled the other one back"
    note(store, guarded, "v2", resumed=True)
    assert len(rolled_back()) == 1, "it is back: again one of the two goes"


def test_what_the_guard_did_calls_once_and_what_people_did_does_not(guarded: Settings) -> None:
    now = time.time()
    said = {
        "v3": Rollback(at=now - 9, by=GUARD, why="9 of 9 turns failed"),
        "v2": Rollback(at=now - 9, by="anna@host"),
        "v4": Rollback(at=now - 9, by=GUARD, resumed=True),
        "v5": Rollback(at=now - 2 * 86_400, by=GUARD),
    }
    [first] = find_rollbacks(guarded, said, now)
    assert first.data == {"flow": "v3", "why": "9 of 9 turns failed", "url": "https://turns.example/policies"}
    [second] = find_rollbacks(guarded, said, now + 60)
    assert first.notification_id == second.notification_id
    [after] = find_rollbacks(guarded, {"v3": Rollback(at=now, by=GUARD)}, now)
    assert after.notification_id != first.notification_id, "rolled back again after it was resumed"

"""What a submit does beside storing its turn (settlement, allowance) may fail: the turn is taken.

It is done again with the next submit, and `turns doctor` says what fails.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.budgets.keys import BudgetKeys
from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import new_turn_id
from api_client.relay_state.submission_limits import OwnerLimits
from tests.installation import asked, run


def budgets(keys: Keys) -> BudgetKeys:
    """The keys of budgets of the same installation."""
    return BudgetKeys(keys.namespace)


Spoil = Callable[[Any, Keys], object]
ANYTHING = OwnerLimits(per_minute=10, unfinished=10, stored_bytes=10**6)
ONE, OTHER = f"turn-{'1' * 32}", f"turn-{'2' * 32}"
SETTLED = '{"day": "1", "at": 1, "amount": 5, "model": "m", "scopes": ["all"], "runs": 1}'
#: What is damaged in the store, what a relay sees fail then (nothing where a script passes over it), the repair.
CASES: dict[str, tuple[str, Spoil, Spoil]] = {
    "a reservation that is no JSON": (
        f"settlement of {ONE}",
        lambda store, keys: store.hset(budgets(keys).reservations, ONE, "{"),
        lambda store, keys: store.hdel(budgets(keys).reservations, ONE),
    ),
    "a reservation of what is no turn": (
        "settlement of x",
        lambda store, keys: store.hset(budgets(keys).reservations, "x", SETTLED),
        lambda store, keys: store.hdel(budgets(keys).reservations, "x"),
    ),
    "a reservation of a turn whose record is no hash": (
        f"settlement of {ONE}",
        lambda store, keys: (
            store.hset(budgets(keys).reservations, ONE, SETTLED),
            store.set(keys.turn(ONE), "x"),
        ),
        lambda store, keys: store.delete(keys.turn(ONE)),
    ),
    "a day's spending that is no number": (
        "reservation",
        lambda store, keys: store.hset(_day(store, keys), "all", "x"),
        lambda store, keys: store.delete(_day(store, keys)),
    ),
    "prices that are no hash": (
        "reservation",
        lambda store, keys: (
            store.delete(budgets(keys).prices),
            store.set(budgets(keys).prices, "x"),
        ),
        lambda store, keys: (
            store.delete(budgets(keys).prices),
            store.hset(budgets(keys).prices, "scripted", 1000),
        ),
    ),
    "a rate that is no string": (
        "allowance",
        lambda store, keys: (store.delete(keys.rate("local")), store.hset(keys.rate("local"), "a", "b")),
        lambda store, keys: store.delete(keys.rate("local")),
    ),
    "unfinished turns that are no set": (
        "allowance",
        lambda store, keys: store.set(keys.unfinished("local"), "x"),
        lambda store, keys: store.delete(keys.unfinished("local")),
    ),
    "counters that are no list": (
        "",
        lambda store, keys: (store.delete(keys.pending), store.set(keys.pending, "x")),
        lambda store, keys: store.delete(keys.pending),
    ),
    "last submits of policies that are no set": (
        "",
        lambda store, keys: (
            store.delete(keys.key_named("policies:used")),
            store.set(keys.key_named("policies:used"), "x"),
        ),
        lambda store, keys: store.delete(keys.key_named("policies:used")),
    ),
}


def _day(store: Any, keys: Keys) -> str:
    return budgets(keys).spending_key(store.time()[0] // 86_400 * 86_400)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, budgets={"all": 10.0})


@pytest.fixture
def store(settings: Settings) -> redis.Redis:
    made = redis.Redis.from_url(settings.redis_url)
    made.hset(BudgetKeys(settings.namespace).prices, "scripted", 1000)
    return made


async def submit(settings: Settings) -> dict[str, str]:
    """Submit two turns as a relay does; what failed beside it."""
    async with TurnsClient(settings) as client:
        for _ in range(2):
            assert await client.allowances.admit_turns("local", ANYTHING, [new_turn_id()], size=10) is None
            assert await client.submitter.submit(asked("hi"))
        return client.store.troubles


@pytest.mark.parametrize("what", CASES)
async def test_housekeeping_that_fails_refuses_no_submit(settings: Settings, store: redis.Redis, what: str) -> None:
    fails, spoil, repair = CASES[what]
    await submit(settings)
    spoil(store, Keys(settings.namespace))
    assert list(await submit(settings)) == [fails] * bool(fails)
    repair(store, Keys(settings.namespace))
    assert await submit(settings) == {}


async def test_other_turns_are_settled_beside_one_that_cannot_be(settings: Settings, store: redis.Redis) -> None:
    keys = Keys(settings.namespace)
    await submit(settings)
    store.hset(budgets(keys).reservations, ONE, "{")
    store.hset(budgets(keys).reservations, OTHER, SETTLED)  # its turn was never stored
    async with TurnsClient(settings) as client:
        await client.spending.read_today()
        assert store.hexists(budgets(keys).reservations, ONE)
        assert not store.hexists(budgets(keys).reservations, OTHER)


async def test_doctor_tries_what_a_submit_does_and_names_what_fails(settings: Settings, store: redis.Redis) -> None:
    assert "submit: the store can carry out a submit" in run(settings, "doctor").stdout
    assert not store.keys(f"{settings.namespace}:*doctor*"), "it leaves nothing"
    store.hset(BudgetKeys(settings.namespace).reservations, ONE, "{")
    store.set(Keys(settings.namespace).pending, "x")
    told = run(settings, "doctor")
    assert "housekeeping: counting fails: ResponseError" in told.stdout
    assert f"housekeeping: settlement of {ONE} fails: JSONDecodeError" in told.stdout
    assert told.returncode == 1

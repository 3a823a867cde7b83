"""Hundreds of turns on one installation: one poisons it while the broker flaps; expired, they leave nothing behind."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.turn import Outcome, Turn, TurnState
from tests.fault.conftest import judged
from tests.fault.matrix import Stage, left_in_store, stubbornly
from tests.installation import asked as message
from tests.support import passes, wait_until

TURNS = 200
SCRIPT = """
- when: "[poison]"
  attempts: [[{say: "x"}, kill_parent]]
- when: "[long]"
  attempts: [[{flood: 16384}, {say: "\\n\\n<!-- STEP: done -->"}]]
- attempts: [[{say: "Sofort.\\n\\n<!-- STEP: done -->"}]]
"""
#: So much of what the turns took may be in use when they have expired: tables and buffers that grew.
MOST_LEFT = 0.1


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("many"), SCRIPT, strikes=3) as made:
        made.start(workers=2)
        yield made


async def ended(client: TurnsClient, turn_id: str) -> Turn:
    """Return the finished turn, retrying while the broker is unavailable."""

    async def turn() -> Turn | None:
        with contextlib.suppress(StoreUnavailable):
            found = await client.reader.read_turn(turn_id)
            return found if found.state is TurnState.FINISHED else None
        return None

    found: Turn = await wait_until(turn, 120, tick=0.2)
    return found


def time_passes(stage: Stage, store: redis.Redis) -> None:
    """Delete everything that would expire, and make finished turns older than their retention."""
    for name in list(store.scan_iter(f"{stage.settings.namespace}:*", count=1000)):
        if store.pttl(name) >= 0:
            store.unlink(name)
    ended: Any = store.zrange(stage.keys.finished, 0, -1, withscores=True)
    if ended:
        kept_ms = 1000 * (stage.settings.retention_seconds + 1)  # what is too old is known to the second
        store.zadd(stage.keys.finished, {name: at - kept_ms for name, at in ended}, xx=True)


def left_of_turns(stage: Stage, store: redis.Redis) -> list[bytes]:
    """Return the keys of turns and sessions."""
    names = list(store.scan_iter(f"{stage.settings.namespace}:*", count=1000))
    return [name for name in names if b":turn:" in name or b":session:" in name]


def in_use(store: redis.Redis) -> int:
    """Return the memory that the data use, in bytes, without the buffers of connections."""
    store.execute_command("MEMORY", "PURGE")
    return int(store.info("memory")["used_memory_dataset"])


async def test_the_memory_of_the_broker_returns_to_its_base_when_the_turns_have_expired(
    stage: Stage, client: TurnsClient
) -> None:
    async def serve(name: str, count: int) -> None:
        asked = [client.submitter.submit(message("[long]", f"{name}-{number}")) for number in range(count)]
        turns = [await ended(client, turn_id) for turn_id in await asyncio.gather(*asked)]
        assert {turn.outcome for turn in turns} == {Outcome.PASSED}

    with stage.store as store:
        await serve("warm", 30)
        time_passes(stage, store)
        base = in_use(store)
        await serve("many", TURNS // 2)
        full = in_use(store)
        time_passes(stage, store)
        await serve("next", 1)  # what it counts is folded, which takes what is too old off the list of finished turns
        await wait_until(lambda: store.zcard(stage.keys.finished) == 1)
        await wait_until(lambda: time_passes(stage, store) or not left_of_turns(stage, store))
        after = in_use(store)
    assert full - base > TURNS // 2 * 16384, "there was nothing to give back"
    assert after - base < (full - base) * MOST_LEFT


async def test_beside_200_turns_and_under_a_flapping_broker_only_the_poison_turn_is_given_up(
    stage: Stage, client: TurnsClient
) -> None:
    beside = [await client.submitter.submit(message("hello", f"beside-{number}")) for number in range(TURNS // 2)]
    poison = await client.submitter.submit(message("[poison]", "poisoned"))
    following = await client.submitter.submit(message("hello", "poisoned"))

    async def flap() -> None:
        for _ in range(5):
            stage.broker.kill()
            await passes(0.2, "the broker is away")
            stage.broker.start()
            await passes(1.0, "the broker is there")

    flapping = asyncio.create_task(flap())
    later = range(TURNS // 2, TURNS)
    beside += [await stubbornly(client, message("hello", f"beside-{number}")) for number in later]
    turns = [await ended(client, turn_id) for turn_id in [*beside, following]]
    await flapping
    assert Counter(turn.outcome for turn in turns) == {Outcome.PASSED: TURNS + 1}
    turn, events = await judged(client, poison)
    assert (turn.outcome, turn.strikes) == (Outcome.DEAD, 3)
    assert [event.kind for event in events].count("attempt.lost") >= 3
    with stage.store as store:
        assert store.zrange(stage.keys.dead, 0, -1) == [poison.encode()]
    letter = {part(poison) for part in (stage.keys.turn, stage.keys.log, stage.keys.attempts)}
    assert set(left_in_store(stage, "poisoned")) == letter

"""Figures by owner and by session of many finished turns: how many commands they cost, alone and together."""

import asyncio
import json
import time
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.turn import new_turn_id
from api_client.figures.tally import PAGE

TURNS = 2 * PAGE + 10


@pytest.fixture
def finished(client: TurnsClient, store: redis.Redis) -> list[str]:
    """Turns of two owners that ended in the same few milliseconds; every tenth one asked again after 11 tokens."""
    keys, now, ids = Keys(client.settings.namespace), int(time.time() * 1000), [new_turn_id() for _ in range(TURNS)]
    pipe = store.pipeline(transaction=False)
    for number, turn_id in enumerate(ids):
        again = number % 10 == 0
        outcome = "passed_after_retry" if again else "passed"
        record: dict[str, str | int] = {
            "state": "finished",
            "outcome": outcome,
            "owner": f"owner-{number % 2}",
            "session_id": "s",
        }
        counts: dict[str, str | int] = {
            "retries": int(again),
            "attempt": 1 + again,
            "tokens_used": 20,
            "cost_used": 1_000_000,
        }
        pipe.hset(keys.turn(turn_id), mapping=record | counts)
        pipe.zadd(keys.finished, {turn_id: now - 1000 + number // 400})
        if again:
            usage = {"input_tokens": 10, "output_tokens": 1, "cost_usd": 0.25}
            first = {"decision": "retry", "completion": '{"verdict": "complete"}', "usage": json.dumps(usage)}
            facts = {f"1:{name}": text for name, text in first.items()} | {"2:decision": "accept"}
            pipe.hset(keys.attempts(turn_id), mapping=facts)
    pipe.execute()
    return ids


def commands(store: redis.Redis) -> int:
    """Return how many pages were read and added up since the statistics of the server were reset."""
    stats: Any = store.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("zrange", "evalsha_ro"))


@pytest.mark.usefixtures("finished")
async def test_figures_by_owner_add_up_a_page_of_turns_with_one_command(
    client: TurnsClient, store: redis.Redis
) -> None:
    await client.figures.read_stats(3600, "owner")
    store.config_resetstat()
    rows: Any = (await client.figures.read_stats(3600, "owner")).rows
    assert commands(store) <= 2 * (TURNS // PAGE + 1) + 1
    even, odd = sorted(rows, key=lambda row: row.name)
    assert (even.turns, odd.turns) == (TURNS // 2, TURNS // 2)
    again = TURNS // 10
    assert (even.asked_again, even.rejected, even.failed_tokens, even.runs) == (again, again, 11 * again, 505 + again)
    assert (even.failed_cost_usd, even.cost_usd) == (pytest.approx(0.25 * again), pytest.approx(505))
    assert (odd.asked_again, odd.rejected, odd.tokens) == (0, 0, 20 * 505)
    [session] = (await client.figures.read_retry_rate(3600, "session")).rows
    assert (session.name, session.rejected, session.validated) == ("s", again, TURNS)


@pytest.mark.usefixtures("finished")
async def test_figures_that_are_asked_for_together_are_computed_once(client: TurnsClient, store: redis.Redis) -> None:
    await client.figures.read_stats(3600, "owner")
    store.config_resetstat()
    by_owner, by_key, *more = await asyncio.gather(
        *(client.figures.read_stats(3600, by) for by in ("owner", "key", "owner", "owner"))
    )
    assert commands(store) <= 2 * (TURNS // PAGE + 1) + 1
    assert [stats.rows for stats in more] == [by_owner.rows] * 2
    assert sum(row.turns for row in by_key.rows) == TURNS  # type: ignore[union-attr]


@pytest.mark.usefixtures("finished")
async def test_a_caller_that_leaves_does_not_end_the_figures_of_others(client: TurnsClient) -> None:
    leaves, stays = (asyncio.create_task(client.figures.read_stats(3600, "owner")) for _ in range(2))
    while not client.figures._tally._running:
        await asyncio.sleep(0)
    leaves.cancel()
    assert sum(row.turns for row in (await stays).rows) == TURNS  # type: ignore[union-attr]

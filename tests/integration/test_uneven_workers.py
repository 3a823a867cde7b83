"""A worker that cannot carry out a turn leaves it to others: over a real store, one link after the other."""

import json
import time
from dataclasses import replace
from typing import Any

import redis

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.turn import Outcome
from tests.integration.engine import FIRST, GOOD, Bench, says
from worker.agents.model_availability import ModelAvailability
from worker.runners.base import Emit, Order, RunResult, Stop, config_error


def wrong_set_up(_order: Order, _emit: Emit, _stop: Stop) -> RunResult:
    return config_error("its hooks are not loaded")


def another_reports(settings: Settings, **more: Any) -> None:
    """Another worker is there, and says this of itself."""
    report = {"at": time.time(), "host": "other", "queues": [RUN_QUEUE, CHECK_QUEUE], "slots": 4, "free": 4}
    with redis.Redis.from_url(settings.redis_url) as store:
        store.hset(Keys(settings.namespace).workers, "worker-9-1@other", json.dumps(report | more))


def give_ability(bench: Bench, settings: Settings) -> None:
    ability = ModelAvailability(settings)
    ability.check_models()
    bench.service.parts = replace(bench.service.parts, ability=ability)


async def test_a_set_up_error_goes_to_another_worker_once_and_ends_the_turn_where_there_is_none(bench: Bench) -> None:
    turn = await bench.outcome(wrong_set_up)
    assert (turn.outcome, turn.error.code) == (Outcome.ERROR, "config"), "nobody else is there"
    another_reports(bench.settings)
    turn_id = await bench.submit(wrong_set_up, session_id="t")
    bench.carry_out(turn_id, session_id="t")
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.attempt, turn.strikes, turn.handed_over) == ("queued", 1, 0, 0)
    kinds = [event.kind for event in await bench.client.reader.read_events(turn_id)]
    assert kinds[-1] == "attempt.lost"
    assert turn.avoid == "w-"
    another_reports(bench.settings, sick="no room")
    bench.store.hset(bench.keys.turn(turn_id), "not_before", 0)  # the time for others is over
    bench.runner.plays = [wrong_set_up]
    bench.carry_out(turn_id, session_id="t")
    assert (await bench.client.reader.read_turn(turn_id)).outcome == Outcome.ERROR, "the other one cannot take it"


async def test_a_turn_of_a_model_that_cannot_be_run_here_is_not_claimed_and_not_counted(bench: Bench) -> None:
    give_ability(bench, replace(bench.settings, models={"another": "scripted", "scripted": "scripted:gone.yaml"}))
    turn_id = await bench.submit(says(GOOD))
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.delivery, turn.seq) == ("queued", 0, 1), "no delivery, no event"
    give_ability(bench, bench.settings)
    bench.carry_out(turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome == Outcome.PASSED


async def test_a_turn_that_is_left_to_a_worker_that_can_is_due_again_soon_and_else_as_before(bench: Bench) -> None:
    give_ability(bench, replace(bench.settings, models={"another": "scripted"}))
    turn_id = await bench.submit(says(GOOD))

    def due_in() -> float:
        due = bench.store.zscore(bench.keys.due, turn_id)
        assert isinstance(due, float)
        return due / 1000 - time.time()

    bench.store.zadd(bench.keys.due, {turn_id: (time.time() + 600) * 1000})
    another_reports(bench.settings, models=["another"])
    bench.carry_out_one(FIRST, turn_id)
    assert due_in() > 300, "nobody can: it is not announced again and again"
    another_reports(bench.settings, models=["scripted"])
    bench.carry_out_one(FIRST, turn_id)
    assert due_in() < 300

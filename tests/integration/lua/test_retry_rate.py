"""The retry rate, from the counters that each command adds to."""

import time
from dataclasses import replace

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import TurnState
from api_client.turns.record.transition import Transition, progress
from tests.integration.lua.by_hand import PASSED, claimed, request
from tests.on_loop import Ledger


async def test_the_retry_rate_counts_turns_and_its_rows_count_attempts(client: TurnsClient, ledger: Ledger) -> None:
    retried = Transition(
        attempt=1,
        state=TurnState.QUEUED,
        next=ChainTask("turn.retry", 2),
        fields=progress(retries=1),
        counters={
            "attempt.judged|retry|scripted": 1,
            "validator.judged|step_marker|scripted": 1,
            "validator.rejected|step_marker|retry|scripted": 1,
            "code.rejected|MISSING_STEP_MARKER|retry": 1,
        },
    )
    first = await client.submitter.submit(request("1"))
    ledger.commit_transition(claimed(ledger, first), retried)
    counters = {"attempt.judged|accept|scripted": 1, "validator.judged|step_marker|scripted": 1}
    retry = claimed(ledger, first, ChainTask("turn.retry", 2))
    ledger.commit_transition(retry, replace(PASSED, attempt=2, counters=counters))
    second = await client.submitter.submit(request("2"))
    ledger.commit_transition(claimed(ledger, second), replace(PASSED, counters=counters))
    whole = await client.figures.read_retry_rate(3600)
    assert (whole.turns, whole.retried, whole.rate) == (2, 1, 0.5)
    [validator] = (await client.figures.read_retry_rate(3600, "validator")).rows
    assert (validator.name, validator.rejected, validator.validated) == ("step_marker", 1, 3)
    [code] = (await client.figures.read_retry_rate(3600, "code")).rows
    assert (code.name, code.rejected) == ("MISSING_STEP_MARKER", 1)
    [session] = (await client.figures.read_retry_rate(3600, "session")).rows
    assert (session.name, session.rejected, session.validated) == ("s-1", 1, 2)
    [model] = (await client.figures.read_retry_rate(3600, "model")).rows
    assert (model.name, model.rejected, model.validated) == ("scripted", 1, 2)
    with pytest.raises(ValueError, match="validator, code, model"):
        await client.figures.read_retry_rate(3600, "weather")


async def test_the_retry_rate_tells_since_when_a_rule_rejects(client: TurnsClient, store: redis.Redis) -> None:
    now, names = time.time(), Keys(client.settings.namespace)
    for back, rejected in ((2, 0), (1, 3)):
        counted = {
            "validator.judged|step_marker|scripted": 4,
            "validator.rejected|step_marker|retry|scripted": rejected,
        }
        again = {"turn.finished|passed_after_retry|scripted|v2|what|1": rejected}
        store.hset(names.bucket_key("hour", now - back * 3600), mapping={**counted, **again})
    rate = await client.figures.read_retry_rate(3 * 3600, "validator", "hour")
    assert (rate.retried, rate.turns, [row.rejected for row in rate.rows]) == (3, 3, [3])
    told = {piece.start: piece for piece in rate.pieces}
    quiet, loud = (told[(now - back * 3600) // 3600 * 3600] for back in (2, 1))
    assert [(row.rejected, row.rate) for row in quiet.rows] == [(0, 0.0)], "nothing rejected is said, not left out"
    assert [(row.rejected, row.rate) for row in loud.rows] == [(3, 0.75)]
    assert (quiet.rate, loud.rate) == (None, 1.0)
    starts = [piece.start for piece in rate.pieces]
    assert starts == [starts[0] + 3600 * number for number in range(len(starts))]
    for wrong, says in [((60, "session", "hour"), "session"), ((60, "", "week"), "minute, hour, day"),
                        ((60, "code", "", "m"), "not counted by model"),
                        ((4e7, "", "hour"), "is kept for"), ((172_000, "", "minute"), "pieces")]:  # fmt: skip
        with pytest.raises(ValueError, match=says):
            await client.figures.read_retry_rate(*wrong)  # type: ignore[arg-type]

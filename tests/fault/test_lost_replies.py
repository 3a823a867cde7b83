"""A command is executed and its reply is lost: the sender repeats it, and it is answered, not executed again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Outcome
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.transition import Answer, Transition
from tests import records
from tests.fault.conftest import judged
from tests.installation import asked
from tests.on_loop import Ledger
from tests.proxy import LossyProxy
from worker.processes.embedded_broker import EmbeddedBroker

PASSED = Transition(attempt=1, outcome=Outcome.PASSED, answer=Answer(response="Ja.", step="done", step_source="marker"))


@pytest.fixture
def proxy(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[LossyProxy]:
    with LossyProxy(broker.url, tmp_path / "proxy.sock") as made:
        yield made


@pytest.fixture
def through(settings: Settings, proxy: LossyProxy) -> Settings:
    return replace(settings, store_url=proxy.url)


@pytest.mark.parametrize("lost", ["", "Hallo", "turn.run/1", "attempt.output", '"response": "Ja."'])
async def test_a_turn_whose_every_command_loses_its_reply_once_is_executed_once(
    lost: str, settings: Settings, through: Settings, proxy: LossyProxy
) -> None:
    async with TurnsClient(through) as client, TurnsClient(settings) as undisturbed:
        ledger = Ledger(through, "w")
        warm_up = await client.submitter.submit(
            asked("Guten Tag", "warm-up")
        )  # the server knows the scripts from now on
        await client.canceller.cancel(warm_up)
        for script in ledger._changes.scripts.values():
            redis.Redis.from_url(settings.redis_url).script_load(script.text)
        if lost:
            proxy.lose(lost)
        turn_id = await client.submitter.submit(asked("Hallo"))
        claim = ledger.claim_turn(turn_id, "s", ChainTask(RUN, 1))
        assert isinstance(claim, LeaseClaim)
        ledger.append_events(claim, [AttemptOutput(attempt=1, text="Ja.")])
        done = ledger.commit_transition(claim, PASSED)
        assert done.outcome == "passed"
        assert proxy.lost == ([lost.encode()] if lost else [])
        turn, events = await judged(undisturbed, turn_id)
        assert (turn.delivery, turn.outcome) == (1, Outcome.PASSED)
        assert [e.kind for e in events] == ["turn.queued", "attempt.started", "attempt.output", "turn.finished"]
        counted = records.counters(redis.Redis.from_url(settings.redis_url), Keys(settings.namespace))
        names = ("turn.submitted", "turn.finished|passed|scripted|v2|done|0", "delivery.started")
        assert [counted[name] for name in names] == [2, 1, 1]

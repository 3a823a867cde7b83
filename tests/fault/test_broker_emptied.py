"""A broker beside the store only wakes workers: losing its data costs seconds, and no turn."""

from collections import Counter

import redis

from api_client.client import TurnsClient
from api_client.contract.tasks import RUN_QUEUE
from api_client.contract.turn import Outcome
from tests.fault.conftest import Meeting, judged
from tests.installation import Installation, asked
from tests.support import wait_until
from worker.processes.embedded_broker import EmbeddedBroker

WAITING = 12


async def test_a_broker_that_is_emptied_twice_loses_no_turn(
    scripted: Installation, meeting: Meeting, private_broker: EmbeddedBroker
) -> None:
    settings = scripted.change(broker_url=private_broker.url, run_slots=2)
    scripted.worker()
    with redis.Redis.from_url(private_broker.url) as doorbell:
        async with TurnsClient(settings) as client:
            ids = [await client.submitter.submit(asked("held", f"held {number}")) for number in range(2)]
            await wait_until(lambda: len(meeting.runs()) == 2)
            ids += [await client.submitter.submit(asked("quick", f"before {number}")) for number in range(WAITING)]
            messages = f"{settings.namespace}:celery:{RUN_QUEUE}"
            await wait_until(lambda: doorbell.llen(messages))
            doorbell.flushall()
            meeting.go()
            for turn_id in ids:
                await judged(client, turn_id)
            ids += [await client.submitter.submit(asked("quick", f"behind {number}")) for number in range(WAITING)]
            doorbell.flushall()
            turns = [(await judged(client, turn_id))[0] for turn_id in ids]
    assert Counter(turn.outcome for turn in turns) == {Outcome.PASSED: 2 + 2 * WAITING}
    assert [turn.strikes for turn in turns] == [0] * len(turns)
    assert set(Counter(str(run["turn"]) for run in meeting.runs()).values()) == {1}, "nothing was paid twice"

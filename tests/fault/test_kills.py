"""Real processes are killed in the middle of a turn: it ends exactly once, and no event is missing or doubled.

The crash matrix (test_crash_matrix.py) kills at exact points; here whole workers die, a process with default settings,
and the broker for longer.
"""

import os
import signal
import time

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.fault.conftest import Meeting, judged
from tests.fault.matrix import WHOLE
from tests.installation import Installation
from tests.support import processes_with, wait_until
from worker.processes.embedded_broker import EmbeddedBroker


async def test_the_whole_worker_killed_takes_its_agent_along_and_another_worker_goes_on(
    mortal: Installation, client: TurnsClient, meeting: Meeting
) -> None:
    first = mortal.worker()
    turn_id = await mortal.ask("held")
    await wait_until(lambda: meeting.begun)
    first.kill()
    await wait_until(lambda: not processes_with(f"HELIX_AGENT_MARK={turn_id}"))
    meeting.go()
    mortal.worker()
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.attempt, turn.delivery) == (Outcome.PASSED, 1, 2)
    assert [event.kind for event in events].count("attempt.lost") == 1
    assert [run["delivery"] for run in meeting.runs()] == [1, 2]


async def test_at_default_settings_the_turn_of_a_killed_process_goes_on_in_another_of_its_worker(
    scripted: Installation, meeting: Meeting
) -> None:
    defaults = Settings()
    scripted.change(reap_seconds=defaults.reap_seconds, announce_seconds=defaults.announce_seconds)
    client = scripted.client
    worker = scripted.worker("--processes", "2")
    await scripted.ask("quick")
    turn_id = await scripted.ask("held", "t")
    await wait_until(lambda: meeting.begun)
    holder = worker.named((await client.reader.read_turn(turn_id)).worker)
    assert holder
    os.kill(holder, signal.SIGKILL)
    await wait_until(lambda: len(meeting.runs()) == 3)
    meeting.go()
    turn, _ = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED
    assert worker.process.poll() is None


#: Shorter than a lease, and longer; `make faults` has one of half a minute too.
OUTAGES = [0.3, 4.0, *([pytest.param(30.0, marks=pytest.mark.timeout(240))] if WHOLE else [])]


@pytest.mark.parametrize("outage_seconds", OUTAGES)
async def test_the_broker_killed_in_the_middle_of_a_turn_loses_nothing(
    outage_seconds: float, scripted: Installation, private_broker: EmbeddedBroker, meeting: Meeting
) -> None:
    scripted.change(broker_url=private_broker.url, store_url=private_broker.url)
    scripted.worker(lease_seconds=1.5)
    client = scripted.client
    turn_id = await scripted.ask("held")
    waiting = await scripted.ask("quick")
    await wait_until(lambda: meeting.begun)
    private_broker.kill()
    back_at = time.monotonic() + outage_seconds
    await wait_until(lambda: time.monotonic() > back_at, outage_seconds + 60)
    meeting.go()
    private_broker.start()
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED, 1)
    after, _ = await judged(client, waiting)
    assert after.outcome is Outcome.PASSED
    new = await scripted.ask("quick", "after the outage")
    assert (await client.reader.await_result(new, timeout=60)).outcome is Outcome.PASSED

"""Real processes, really killed in the middle of a turn: it ends exactly once, and no event is missing or doubled."""

import os
import signal
import time

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.fault.conftest import Meeting, judged
from tests.installation import Installation
from tests.support import processes_with, wait_until
from worker.processes.broker import EmbeddedBroker

#: Link by link, what has just happened when the worker is killed.
MOMENTS = ("attempt.started", "attempt.output", "attempt.completed", "attempt.rejected", "turn.retrying")


async def reached(client: TurnsClient, turn_id: str, kind: str) -> None:
    async for event in client.reader.follow(turn_id):
        if event is not None and event.kind == kind:
            return


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_processes_of_a_worker_killed_at_any_moment_the_turn_ends_once(
    moment: str, mortal: Installation, client: TurnsClient, meeting: Meeting
) -> None:
    worker = mortal.worker()
    turn_id = await mortal.ask("forgetful")
    await reached(client, turn_id, moment)
    for pid in worker.children().values():
        os.kill(pid, signal.SIGKILL)
    meeting.go()
    turn, _ = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert turn.response == "Ohne Marker.\n\n<!-- STEP: done -->"
    assert turn.attempt == 2, "a crash adds a delivery, never an attempt"


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


async def test_a_frozen_worker_that_wakes_up_late_changes_nothing(
    mortal: Installation, client: TurnsClient, meeting: Meeting
) -> None:
    frozen, other = mortal.worker(), mortal.worker()
    turn_id = await mortal.ask("held")
    await wait_until(lambda: meeting.begun)
    name = (await client.reader.get(turn_id)).worker
    victim, holder = next((each, pid) for each in (frozen, other) if (pid := each.named(name)))
    os.kill(holder, signal.SIGSTOP)
    await wait_until(lambda: client.reader.get(turn_id))
    meeting.go()
    turn, _ = await judged(client, turn_id)
    os.kill(holder, signal.SIGCONT)
    again = await mortal.ask("quick", "another session")
    await judged(client, again)
    later, _ = await judged(client, turn_id)
    assert victim.process.poll() is None
    assert (later, turn.delivery) == (turn, 2)


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
    holder = worker.named((await client.reader.get(turn_id)).worker)
    assert holder
    os.kill(holder, signal.SIGKILL)
    await wait_until(lambda: len(meeting.runs()) == 3)
    meeting.go()
    turn, _ = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED
    assert worker.process.poll() is None


@pytest.mark.parametrize("outage_seconds", [0.3, 4.0, pytest.param(30.0, marks=pytest.mark.timeout(240))])
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
    assert (await client.reader.result(new, timeout=60)).outcome is Outcome.PASSED

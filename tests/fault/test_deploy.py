"""Workers that are stopped, restarted and replaced on purpose: no turn is lost, none is struck, none waits for long."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable
from dataclasses import replace

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.conftest import WorkerProcess
from tests.fault.conftest import Meeting, judged, message
from tests.support import wait_until

StartWorker = Callable[..., WorkerProcess]


async def test_a_stopped_worker_hands_its_running_turn_over_without_a_strike(
    scripted: Settings, meeting: Meeting, worker_process: StartWorker
) -> None:
    hasty = replace(scripted, shutdown_seconds=0.3)
    async with TurnsClient(hasty) as client:
        first = worker_process(settings=hasty)
        turn_id = await client.submit(message("held"))
        await wait_until(lambda: meeting.begun, 20)
        first.kill(signal.SIGTERM)
        await asyncio.to_thread(first.process.wait, 20)
        meeting.go()
        worker_process(settings=hasty)
        turn, events = await judged(client, turn_id)
        assert (turn.outcome, turn.attempt, turn.delivery, turn.strikes) == (Outcome.PASSED, 1, 2, 0)
        assert [event.data["during"] for event in events if event.kind == "attempt.lost"] == ["shutdown"]


async def test_a_stopped_worker_lets_an_agent_finish_that_needs_only_a_moment(
    scripted: Settings, meeting: Meeting, worker_process: StartWorker
) -> None:
    patient = replace(scripted, shutdown_seconds=20)
    async with TurnsClient(patient) as client:
        first = worker_process(settings=patient)
        turn_id = await client.submit(message("held"))
        await wait_until(lambda: meeting.begun, 20)
        first.kill(signal.SIGTERM)
        meeting.go()
        await asyncio.to_thread(first.process.wait, 20)
        worker_process(settings=patient)
        turn, _ = await judged(client, turn_id)
        assert (turn.outcome, turn.delivery) == (Outcome.PASSED, 1)


async def test_a_rolling_restart_of_two_workers_under_load_loses_nothing(
    scripted: Settings, meeting: Meeting, worker_process: StartWorker
) -> None:
    hasty = replace(scripted, shutdown_seconds=0.3, run_slots=4)
    meeting.go()
    async with TurnsClient(hasty) as client:
        workers = [worker_process(settings=hasty), worker_process(settings=hasty)]
        ids: list[str] = []
        for old in workers:
            ids += [await client.submit(message("forgetful", f"s{len(ids)}-{n}")) for n in range(12)]
            old.kill(signal.SIGTERM)
            ids += [await client.submit(message("quick", f"s{len(ids)}-{n}")) for n in range(12)]
            await asyncio.to_thread(old.process.wait, 30)
            worker_process(settings=hasty)
        for turn_id in ids:
            turn, events = await judged(client, turn_id)
            assert turn.outcome in {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY}
            assert turn.strikes == 0
            waits = [
                later.at - earlier.at for earlier, later in itertools.pairwise(events) if earlier.kind == "attempt.lost"
            ]
            assert all(wait < hasty.lease_seconds + 3 for wait in waits), waits

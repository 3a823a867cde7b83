"""Workers that are stopped, restarted and replaced on purpose: no turn is lost, struck or delayed for long."""

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import redis
from celery import Celery

from api_client.broker.celery_message import celery_settings
from api_client.contract.settings import Settings
from api_client.contract.tasks import ALL_QUEUES, CHECK_QUEUE, PREFERRED_QUEUE, RUN, RUN_QUEUE, ChainTask
from api_client.contract.turn import Outcome, TurnState
from tests.fault.conftest import Meeting, judged
from tests.installation import Installation, environ_of
from tests.installation import asked as message
from tests.support import wait_for, wait_until
from worker.celery.consumer_bridge import ConsumerBridge
from worker.processes.isolated_tasks import IsolatedTasks
from worker.turns.engine import Engine


async def test_a_stopped_worker_hands_its_running_turn_over_without_a_strike(
    scripted: Installation, meeting: Meeting
) -> None:
    scripted.change(shutdown_seconds=0.3)
    client = scripted.client
    first = scripted.worker()
    turn_id = await scripted.ask("held")
    await wait_until(lambda: meeting.begun)
    first.kill(signal.SIGTERM)
    await asyncio.to_thread(first.process.wait, 60)
    meeting.go()
    scripted.worker()
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.attempt, turn.delivery, turn.strikes) == (Outcome.PASSED, 1, 2, 0)
    assert [event.data["during"] for event in events if event.kind == "attempt.lost"] == ["shutdown"]


async def test_a_stopped_worker_lets_an_agent_finish_that_needs_only_a_moment(
    scripted: Installation, meeting: Meeting
) -> None:
    scripted.change(shutdown_seconds=20)
    client = scripted.client
    first = scripted.worker()
    turn_id = await scripted.ask("held")
    await wait_until(lambda: meeting.begun)
    first.kill(signal.SIGTERM)
    meeting.go()
    await asyncio.to_thread(first.process.wait, 60)
    scripted.worker()
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery) == (Outcome.PASSED, 1)


async def test_a_rolling_restart_of_two_workers_under_load_loses_nothing(
    scripted: Installation, meeting: Meeting
) -> None:
    scripted.change(shutdown_seconds=0.3, run_slots=4, lease_seconds=120.0)
    meeting.go()
    client = scripted.client
    workers = [scripted.worker(), scripted.worker()]
    ids: list[str] = []
    for old in workers:
        ids += [await client.submitter.submit(message("forgetful", f"s{len(ids)}-{n}")) for n in range(12)]
        old.kill(signal.SIGTERM)
        ids += [await client.submitter.submit(message("quick", f"s{len(ids)}-{n}")) for n in range(12)]
        await asyncio.to_thread(old.process.wait, 60)
        scripted.worker()
    for turn_id in ids:
        turn, events = await judged(client, turn_id)
        assert turn.outcome in {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY}
        assert turn.strikes == 0
        waits = [
            later.at - earlier.at for earlier, later in itertools.pairwise(events) if earlier.kind == "attempt.lost"
        ]
        assert all(wait < scripted.settings.lease_seconds for wait in waits), "nobody waits for a lease to end"


async def test_a_turn_that_runs_alone_is_handed_over_however_often_its_process_is_asked_to_end(
    scripted: Installation, meeting: Meeting
) -> None:
    client = scripted.client
    turn_id = await scripted.ask("held")
    command = [sys.executable, "-m", "worker.isolated", "turn.run", "1", turn_id, "s"]
    process = subprocess.Popen(command, env=environ_of(scripted.settings), stderr=subprocess.DEVNULL)
    await wait_until(lambda: meeting.begun)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    turn = await client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, turn.strikes) == (TurnState.QUEUED, "turn.run/1", 0)


def test_a_worker_hands_its_turns_over_only_when_it_takes_no_more_messages(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, shutdown_seconds=0)
    engine = Engine(settings, Celery("test", set_as_current=False), IsolatedTasks(settings))
    listening, woken, handed_over = threading.Event(), itertools.count(), threading.Event()
    listening.set()
    monkeypatch.setattr(engine.leases, "stop_all", lambda _reason: handed_over.set())
    monkeypatch.setattr(ConsumerBridge, "listens", property(lambda _: listening.is_set()))
    monkeypatch.setattr(engine.bridge, "wake", lambda: next(woken))
    engine.start()
    engine.shut_down()
    wait_for(lambda: next(woken) > 10)  # its loop sleeps: it is woken until it has seen that it shall end
    assert not handed_over.is_set()
    listening.clear()
    assert handed_over.wait(60)
    engine.close()


def test_what_a_worker_announces_has_waited_before_and_goes_before_turns_that_were_just_submitted(
    settings: Settings,
) -> None:
    """A turn that a worker gives back is not queued behind all others."""
    celery = Celery("test", set_as_current=False)
    celery.conf.update(celery_settings(settings))
    engine = Engine(settings, celery, IsolatedTasks(settings))
    engine.announce_task(ChainTask(RUN, 1), f"turn-{'a' * 32}", "s")
    with redis.Redis.from_url(settings.redis_url) as store:
        queues = {queue: store.llen(f"{settings.namespace}:celery:{queue}") for queue in ALL_QUEUES}
    assert queues == {PREFERRED_QUEUE: 1, RUN_QUEUE: 0, CHECK_QUEUE: 0}


def test_being_asked_to_end_takes_no_lock_for_the_signal_may_find_its_own_handler_at_work(settings: Settings) -> None:
    isolated = IsolatedTasks(settings)
    engine = Engine(settings, Celery("test", set_as_current=False), isolated, alone=True)
    with engine.leases._lock, isolated._lock:
        asked = threading.Thread(target=engine.shut_down, daemon=True)
        asked.start()
        asked.join(60)
        assert not asked.is_alive()

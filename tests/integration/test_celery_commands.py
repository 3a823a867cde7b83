"""Celery's own commands are true of a real worker: what they show, and what they do."""

import json
import subprocess
import sys
import threading
from typing import Any

import pytest
from celery import Celery

from api_client.broker.celery_message import celery_settings
from api_client.contract.tasks import ALL_QUEUES, CHECK_QUEUE, PREFERRED_QUEUE, RUN, RUN_QUEUE
from api_client.contract.turn import Outcome
from tests.installation import Installation, WorkerProcess, environ_of
from tests.integration.test_older_worker import OLDER
from tests.support import wait_for, wait_until

SCRIPT = """
- when: hang
  attempts: [[hang]]
- attempts: [[say: "Gut. <!-- STEP: done -->"]]
"""


class Operator:
    """Somebody with Celery's commands, and the one worker process that answers."""

    def __init__(self, installation: Installation) -> None:
        self.app = Celery("operator", set_as_current=False)
        self.app.conf.update(celery_settings(installation.settings))

    def inspect(self, what: str, *arguments: Any) -> Any:
        """What the worker says of itself."""
        said: Any = wait_for(lambda: getattr(self.app.control.inspect(timeout=30, limit=1), what)(*arguments))
        [answer] = said.values()
        return answer

    def control(self, command: str, **arguments: Any) -> Any:
        """Give an order; what the worker answers."""
        [said] = wait_for(lambda: self.app.control.broadcast(command, arguments, reply=True, timeout=30, limit=1))
        [answer] = said.values()
        return answer

    def active(self) -> list[dict[str, Any]]:
        return list(self.inspect("active"))


@pytest.fixture
def worker(installation: Installation) -> WorkerProcess:
    installation.play(SCRIPT, run_slots=2, shutdown_seconds=0.0, kill_grace_seconds=0.5)
    return installation.worker()


@pytest.fixture
def operator(installation: Installation, worker: WorkerProcess) -> Operator:
    return Operator(installation)


async def test_inspect_shows_what_runs_what_ran_and_what_can_run(
    installation: Installation, operator: Operator
) -> None:
    assert "turn.run" in str(operator.inspect("registered"))
    assert (await installation.answer()).outcome == Outcome.PASSED
    hanging = await installation.ask("hang", "h")
    await installation.until(hanging, "running")
    [task] = await wait_until(lambda: len(found := operator.active()) == 1 and found)
    assert (task["name"], task["kwargs"]["turn_id"], task["worker_pid"] > 0) == (RUN, hanging, True)
    assert operator.inspect("query_task", task["id"])[task["id"]][0] == "active"
    assert (operator.inspect("reserved"), operator.inspect("scheduled")) == ([], [])
    stats = await wait_until(lambda: (found := operator.inspect("stats"))["total"].get("turn.validate") and found)
    assert stats["total"] == {"turn.run": 2, "turn.validate": 1}
    assert stats["pool"]["implementation"] == "worker.celery.pool:TurnPool"
    assert (stats["pool"]["max-concurrency"], stats["pool"]["agent-slots"], stats["pool"]["busy-slots"]) == (2, 2, 1)
    await installation.client.canceller.cancel(hanging)
    await installation.result(hanging)
    await wait_until(lambda: not operator.active())


@pytest.mark.parametrize("terminate", [True, False], ids=["terminate", "revoke"])
async def test_a_revoked_task_that_runs_cancels_its_turn_and_no_other(
    terminate: bool, installation: Installation, operator: Operator
) -> None:
    other, turn_id = await installation.ask("hang", "other"), await installation.ask("hang", "s")
    await wait_until(lambda: len(operator.active()) == 2)
    [task] = [each["id"] for each in operator.active() if each["kwargs"]["turn_id"] == turn_id]
    assert operator.control("revoke", task_id=task, terminate=terminate) == {"ok": f"terminate: {task}"}
    assert (await installation.result(turn_id)).outcome == Outcome.CANCELLED
    assert task in operator.inspect("revoked")
    assert (await installation.client.reader.read_turn(other)).state == "running"
    [left] = operator.active()
    operator.control("revoke", task_id=left["id"])
    assert (await installation.result(other)).outcome == Outcome.CANCELLED


async def test_an_order_to_revoke_that_dies_with_its_worker_is_not_answered_and_may_be_given_again(
    installation: Installation,
) -> None:
    """A real SIGKILL between the order and the store; an order that is answered is kept."""
    installation.play(SCRIPT, run_slots=2, kill_grace_seconds=0.5, lease_seconds=2.0)
    installation.worker(within=["env", "HELIX_AGENT_BREAK=revoked", *OLDER[2:]])
    operator = Operator(installation)
    turn_id = await installation.ask("hang")
    [task] = await wait_until(lambda: operator.active())
    order = {"task_id": task["id"], "terminate": True}
    assert not operator.app.control.broadcast("revoke", order, reply=True, timeout=8, limit=1)
    assert (installation.settings.root / "died").exists()
    [again] = await wait_until(lambda: [each for each in operator.active() if each["id"] != task["id"]])
    assert again["kwargs"]["turn_id"] == turn_id, "the turn goes on"
    assert operator.control("revoke", task_id=again["id"]) == {"ok": f"terminate: {again['id']}"}
    assert (await installation.client.reader.read_turn(turn_id)).stop == "cancelled", "the store has the order"
    assert (await installation.result(turn_id)).outcome == Outcome.CANCELLED


async def test_a_task_that_is_revoked_while_it_waits_cancels_its_turn_when_it_comes(
    installation: Installation, operator: Operator
) -> None:
    busy = [await installation.ask("hang", f"busy-{number}") for number in range(2)]
    await wait_until(lambda: len(operator.active()) == 2)
    waiting = await installation.ask("hello", "waiting")
    [message] = await wait_until(
        lambda: installation.store.lrange(f"{installation.settings.namespace}:celery:{RUN_QUEUE}", 0, -1)
    )
    operator.control("revoke", task_id=json.loads(message)["headers"]["id"])
    await installation.client.canceller.cancel(busy[0])
    assert (await installation.result(waiting)).outcome == Outcome.CANCELLED
    await installation.client.canceller.cancel(busy[1])


async def test_the_pool_grows_and_shrinks_and_turns_that_run_go_on(
    installation: Installation, operator: Operator
) -> None:
    turns = [await installation.ask("hang", f"s-{number}") for number in range(3)]
    await wait_until(lambda: len(operator.active()) == 2)
    assert operator.control("pool_grow", n=2) == {"ok": "pool will grow"}
    await wait_until(lambda: len(operator.active()) == 3)
    assert operator.inspect("stats")["pool"]["max-concurrency"] == 4
    assert operator.control("pool_shrink", n=3) == {"ok": "pool will shrink"}
    assert (operator.inspect("stats")["pool"]["agent-slots"], len(operator.active())) == (1, 3)
    assert "at least one slot" in operator.control("pool_shrink", n=1)["error"]
    assert "at least one slot" in operator.control("pool_grow", n=-1)["error"]
    for turn_id in turns:
        await installation.client.canceller.cancel(turn_id)
        await installation.result(turn_id)
    assert (await installation.answer()).outcome == Outcome.PASSED


async def test_a_queue_is_left_and_taken_up_again_and_its_worker_is_not_taken_for_stalled(
    installation: Installation, operator: Operator, worker: WorkerProcess
) -> None:
    for queue in (RUN_QUEUE, PREFERRED_QUEUE):
        operator.control("cancel_consumer", queue=queue)
    await wait_until(lambda: [each["name"] for each in operator.inspect("active_queues")] == [CHECK_QUEUE])
    turn_id = await installation.ask()

    def list_reported_queues() -> list[set[str]]:
        reports = installation.store.hgetall(installation.keys.workers)
        return [set(json.loads(report)["queues"]) for report in reports.values()]

    await wait_until(lambda: list_reported_queues() == [{CHECK_QUEUE}])
    assert (await installation.client.reader.read_turn(turn_id)).state == "queued"
    for queue in (RUN_QUEUE, PREFERRED_QUEUE):
        operator.control("add_consumer", queue=queue)
    assert (await installation.result(turn_id)).outcome == Outcome.PASSED
    await wait_until(lambda: list_reported_queues() == [set(ALL_QUEUES)])
    assert "worker.stalled" not in worker.log_file.read_text()


async def test_limits_by_celery_are_refused_with_what_to_use_instead(operator: Operator) -> None:
    assert "deadline_seconds" in operator.control("time_limit", task_name=RUN, soft=1, hard=2)["error"]
    assert "owners" in operator.control("rate_limit", task_name=RUN, rate_limit="1/h")["error"]


async def runs_again(installation: Installation, turn_id: str) -> bool:
    turn = await installation.client.reader.read_turn(turn_id)
    return turn.state == "running" and turn.delivery > 1


async def test_a_shutdown_by_celery_hands_the_turn_over_and_loses_none(
    installation: Installation, operator: Operator, worker: WorkerProcess
) -> None:
    turn_id = await installation.ask("hang")
    await wait_until(operator.active)
    before = worker.children()["1"]
    threading.Thread(target=lambda: operator.app.control.shutdown(), daemon=True).start()
    await wait_until(lambda: worker.children().get("1") not in {None, before})
    await wait_until(lambda: worker.log_file.read_text().count("worker.ready") > 1)
    await wait_until(lambda: runs_again(installation, turn_id))
    assert (await installation.client.reader.read_turn(turn_id)).strikes == 0
    await installation.client.canceller.cancel(turn_id)
    await installation.result(turn_id)


@pytest.mark.parametrize("message", ["no JSON", "{}", "[1]", '{"body": "e30=", "headers": {"task": "turn.run"}}'])
async def test_a_message_of_a_wrong_shape_is_dropped_and_the_worker_goes_on(
    message: str, installation: Installation, worker: WorkerProcess
) -> None:
    before = worker.children()
    installation.store.rpush(f"{installation.settings.namespace}:celery:{RUN_QUEUE}", message)
    await wait_until(lambda: "message.refused" in worker.log_file.read_text())
    assert (await installation.answer()).outcome == Outcome.PASSED
    assert worker.children() == before


async def test_autoscale_follows_the_turns_and_what_has_no_slot_stays_in_the_broker_whatever_the_prefetch(
    installation: Installation,
) -> None:
    used = installation.play(SCRIPT)
    command = [sys.executable, "-m", "celery", "-A", "worker.app", "worker", "-E", "-n", "x@%h"]
    command += ["--autoscale", "3,1", "--prefetch-multiplier", "16"]
    log = (used.root / "celery.log").open("wb")
    process = subprocess.Popen(command, env=environ_of(used, AUTOSCALE_KEEPALIVE="1"), stdout=log, stderr=log)
    try:
        operator = Operator(installation)
        assert operator.inspect("stats")["autoscaler"]["max"] == 3
        turns = [await installation.ask("hang", f"s-{number}") for number in range(4)]
        await wait_until(lambda: len(operator.active()) == 3)
        left = installation.store.llen(f"{installation.settings.namespace}:celery:{RUN_QUEUE}")
        assert (left, operator.inspect("reserved")) == (1, [])
        for turn_id in turns:
            await installation.client.canceller.cancel(turn_id)
            await installation.result(turn_id)
        await wait_until(lambda: operator.inspect("stats")["autoscaler"]["current"] == 1)
        assert (await installation.answer()).outcome == Outcome.PASSED
    finally:
        process.terminate()
        process.wait(60)
        log.close()

"""What operators see in Flower: the task events of real workers, as Flower itself reads them."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from celery import Celery
from celery.events.state import State

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.tasks import celery_settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.conftest import WorkerProcess
from tests.fault.matrix import free_port
from tests.support import playing, wait_until
from worker.processes import programs
from worker.processes.supervisor import Supervisor

SCRIPT = """
- when: secret message
  attempts:
    - - say: "No marker in this secret answer."
    - - say: "<!-- STEP: done -->"
"""


class Watcher:
    """Receives task events as Flower does, and remembers each state a task went through."""

    def __init__(self, settings: Settings) -> None:
        self.state: Any = State()
        self.seen = defaultdict[str, list[tuple[str, str]]](list)
        self._app = Celery("watcher", set_as_current=False)
        self._app.conf.update(celery_settings(settings))
        self._connection = self._app.connection_for_read()
        self._receiver = self._app.events.Receiver(self._connection, handlers={"*": self._take})
        self.listening = threading.Event()
        self._receiver.on_consume_ready = lambda *_, **__: self.listening.set()
        self._thread = threading.Thread(target=self._receiver.capture, kwargs={"limit": None, "timeout": None})
        self._thread.start()

    def _take(self, event: dict[str, Any]) -> None:
        self.state.event(event)
        if event["type"].startswith("task-"):
            task = self.state.tasks[event["uuid"]]
            self.seen[task.name or ""].append((task.state, str(task.result or "").strip("'")))

    def close(self) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.close()


@pytest.fixture
def watcher(settings: Settings) -> Iterator[Watcher]:
    made = Watcher(settings)
    assert made.listening.wait(60)
    yield made
    made.close()


async def test_tasks_tell_their_attempt_their_state_and_why_there_is_another(
    settings: Settings, watcher: Watcher, worker_process: Callable[..., WorkerProcess]
) -> None:
    used = playing(settings, SCRIPT, "m")
    worker_process(settings=used)
    async with TurnsClient(used) as client:
        request = TurnRequest(model="m", messages=({"role": "user", "content": "secret message"},), session_id="chat-7")
        turn_id = await client.submit(request)
        assert (await client.result(turn_id, timeout=60)).outcome is Outcome.PASSED_AFTER_RETRY

    accepted = ("SUCCESS", "attempt 2/3: accepted; turn passed_after_retry")
    await wait_until(lambda: accepted in watcher.seen["turn.validate"])
    assert ("RUNNING", "attempt 1/3") in watcher.seen["turn.run"]
    assert watcher.seen["turn.run"][-1] == ("SUCCESS", "attempt 1/3: complete")
    assert ("VALIDATING", "attempt 1/3") in watcher.seen["turn.validate"]
    rejected = ("SUCCESS", "attempt 1/3: rejected, MISSING_STEP_MARKER; asked again")
    assert rejected in watcher.seen["turn.validate"]
    assert ("RUNNING", "attempt 2/3: MISSING_STEP_MARKER") in watcher.seen["turn.retry"]
    assert watcher.seen["turn.retry"][-1] == ("SUCCESS", "attempt 2/3: complete")

    stages = [task for task in watcher.state.tasks.values() if turn_id in (task.kwargs or "")]
    assert sorted(task.name for task in stages) == ["turn.retry", "turn.run", "turn.validate", "turn.validate"]
    assert all("chat-7" in task.kwargs for task in stages)
    assert "secret" not in repr([task.as_dict() for task in watcher.state.tasks.values()])


def asked(settings: Settings, path: str) -> Any:
    """What Flower answers, to somebody with its password."""
    answer = httpx2.get(f"http://127.0.0.1:{settings.flower_port}{path}", auth=("turns", "pass"), timeout=30)
    return answer.raise_for_status().json()


async def test_flower_shows_the_links_of_a_turn_as_one_chain_and_they_are_those_of_its_log(
    settings: Settings, worker_process: Callable[..., WorkerProcess]
) -> None:
    used = playing(settings, SCRIPT, "m", flower_port=free_port())
    with Supervisor([programs.flower(used, "pass")], logs=programs.state_dir(used)):
        worker_process(settings=used)
        await wait_until(lambda: [worker for worker in asked(used, "/workers?json=1")["data"] if worker["status"]])
        async with TurnsClient(used) as client:
            request = TurnRequest(model="m", messages=({"role": "user", "content": "secret message"},), session_id="c")
            turn_id = await client.submit(request)
            assert (await client.result(turn_id, timeout=60)).outcome is Outcome.PASSED_AFTER_RETRY
            log = [event async for event in client.follow(turn_id) if event is not None]

        def chain() -> list[dict[str, Any]]:
            """The turn's tasks in Flower, each before its child, when all have ended."""
            found = [task for task in asked(used, "/api/tasks").values() if turn_id in (task["kwargs"] or "")]
            by_parent = {task["parent_id"]: task for task in found}
            line = [by_parent[None]] if None in by_parent else []
            while line and line[-1]["uuid"] in by_parent:
                line.append(by_parent[line[-1]["uuid"]])
            return line if len(line) == 4 and all(task["state"] == "SUCCESS" for task in line) else []

        tasks = await wait_until(chain)
    assert {task["root_id"] for task in tasks} == {tasks[0]["uuid"]}
    logged = [
        (word, event.data["attempt"])
        for event in log
        if (
            word := {"attempt.completed": "ran", "attempt.rejected": "judged", "attempt.accepted": "judged"}.get(
                event.kind
            )
        )
    ]
    words = {"turn.run": "ran", "turn.retry": "ran", "turn.validate": "judged"}
    shown = [(words[task["name"]], int(re.search(r"'attempt': (\d)", task["kwargs"])[1])) for task in tasks]
    assert shown == logged == [("ran", 1), ("judged", 1), ("ran", 2), ("judged", 2)]
    times = [at for task in tasks for at in (task["received"], task["started"], task["succeeded"])]
    assert times == sorted(times)

"""What operators see in Flower: the task events of real workers, as Flower itself reads them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.tasks import celery_settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.conftest import WorkerProcess
from tests.support import playing, wait_until

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
    assert made.listening.wait(10)
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
        assert (await client.result(turn_id, timeout=30)).outcome is Outcome.PASSED_AFTER_RETRY

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

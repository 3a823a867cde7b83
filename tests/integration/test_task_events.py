"""What operators see in Flower: the task events of real workers, as Flower itself reads them."""

import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from celery import Celery
from celery.events.state import State

from api_client.broker.celery_message import celery_settings
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.installation import Installation
from tests.integration.test_session_affinity import Chat
from tests.ports import free_port
from tests.support import wait_until
from worker.processes import own_programs
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
        self._thread.join(60)
        self._connection.close()


@pytest.fixture
def watcher(settings: Settings) -> Iterator[Watcher]:
    made = Watcher(settings)
    assert made.listening.wait(60)
    yield made
    made.close()


async def test_tasks_tell_their_attempt_their_state_and_why_there_is_another(
    installation: Installation, watcher: Watcher
) -> None:
    installation.play(SCRIPT, "m")
    installation.worker()
    client = installation.client
    request = TurnRequest(model="m", messages=({"role": "user", "content": "secret message"},), session_id="chat-7")
    turn_id = await client.submitter.submit(request)
    assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.PASSED_AFTER_RETRY

    accepted = ("SUCCESS", "attempt 2/3: accepted; turn passed_after_retry")
    await wait_until(lambda: accepted in watcher.seen["turn.validate"])
    assert ("STARTED", "attempt 1/3") in watcher.seen["turn.run"]
    assert watcher.seen["turn.run"][-1] == ("SUCCESS", "attempt 1/3: complete")
    assert ("STARTED", "attempt 1/3") in watcher.seen["turn.validate"]
    rejected = ("SUCCESS", "attempt 1/3: rejected, MISSING_STEP_MARKER; asked again")
    assert rejected in watcher.seen["turn.validate"]
    assert ("STARTED", "attempt 2/3: MISSING_STEP_MARKER") in watcher.seen["turn.retry"]
    assert watcher.seen["turn.retry"][-1] == ("SUCCESS", "attempt 2/3: complete")

    stages = [task for task in watcher.state.tasks.values() if turn_id in (task.kwargs or "")]
    assert sorted(task.name for task in stages) == ["turn.retry", "turn.run", "turn.validate", "turn.validate"]
    assert all("chat-7" in task.kwargs for task in stages)
    assert "secret" not in repr([task.as_dict() for task in watcher.state.tasks.values()])


async def test_a_turn_left_to_its_agents_keeper_is_a_task_there_and_says_so_where_it_was_left(
    installation: Installation, watcher: Watcher
) -> None:
    answer = '- attempts: [[say: "Hi. <!-- STEP: done -->"]]'
    installation.play(answer, runner="inline_living", claude_warm_seconds=300.0, affinity_patience=60.0)
    installation.worker("--processes", "2")
    chat = Chat(installation)
    await chat.say()
    left = f"left to {chat.keeper}"
    for _ in range(10):  # the other process takes one of them first
        await chat.say()
    await wait_until(lambda: ("SUCCESS", left) in watcher.seen["turn.run"])
    [task, *_] = [each for each in watcher.state.tasks.values() if str(each.result).strip("'") == left]
    assert (task.state, task.worker.hostname != chat.keeper) == ("SUCCESS", True)

    def find_run_by_keeper() -> Any:
        runs = [each for each in watcher.state.tasks.values() if each.name == "turn.run"]
        return [each for each in runs if each.root_id == task.uuid != each.uuid and each.state == "SUCCESS"]

    [there] = await wait_until(find_run_by_keeper)
    assert (there.worker.hostname, there.kwargs) == (chat.keeper, task.kwargs)
    assert str(there.result).strip("'") == "attempt 1/3: complete"


def asked(flower: int, path: str) -> Any:
    """What Flower answers on this port, to somebody with its password."""
    answer = httpx2.get(f"http://127.0.0.1:{flower}{path}", auth=("turns", "pass"), timeout=120)
    return answer.raise_for_status().json()


async def test_flower_shows_the_links_of_a_turn_as_one_chain_and_they_are_those_of_its_log(
    installation: Installation,
) -> None:
    used = installation.play(SCRIPT, "m")
    port = free_port()
    with Supervisor([own_programs.flower_program(used, port, "pass")], logs=own_programs.ensure_state_dir(used)):
        installation.worker()
        await wait_until(lambda: [worker for worker in asked(port, "/workers?json=1")["data"] if worker["status"]])
        client = installation.client
        request = TurnRequest(model="m", messages=({"role": "user", "content": "secret message"},), session_id="c")
        turn_id = await client.submitter.submit(request)
        assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.PASSED_AFTER_RETRY
        log = [event async for event in client.reader.follow_turn(turn_id) if event is not None]

        def chain() -> list[dict[str, Any]]:
            """The turn's tasks in Flower, each before its child, when all have ended."""
            found = [task for task in asked(port, "/api/tasks").values() if turn_id in (task["kwargs"] or "")]
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


def tasks_of(flower: int, turn_id: str) -> list[dict[str, Any]]:
    return [task for task in asked(flower, "/api/tasks").values() if turn_id in (task["kwargs"] or "")]


async def test_the_task_of_a_killed_worker_ends_as_failure_in_flower_and_none_runs_for_ever(
    installation: Installation,
) -> None:
    script = "- deliveries:\n    - [hang]\n    - [{say: 'Gut. <!-- STEP: done -->'}]\n"
    used = installation.play(script, "m", lease_seconds=5.0)
    port = free_port()
    with Supervisor([own_programs.flower_program(used, port, "pass")], logs=own_programs.ensure_state_dir(used)):
        killed = installation.worker()
        await wait_until(lambda: [worker for worker in asked(port, "/workers?json=1")["data"] if worker["status"]])
        client = installation.client
        request = TurnRequest(model="m", messages=({"role": "user", "content": "hello"},), session_id="c")
        turn_id = await client.submitter.submit(request)
        await wait_until(lambda: [task for task in tasks_of(port, turn_id) if task["state"] == "STARTED"])
        [ghost] = [task["uuid"] for task in tasks_of(port, turn_id) if task["state"] == "STARTED"]
        killed.kill()
        installation.worker()
        assert (await client.reader.await_result(turn_id, timeout=120)).outcome is Outcome.PASSED

        def ended() -> dict[str, dict[str, Any]]:
            found = {task["uuid"]: task for task in tasks_of(port, turn_id)}
            done = all(task["state"] in {"SUCCESS", "FAILURE"} for task in found.values())
            return found if done and len(found) >= 3 else {}

        tasks = await wait_until(ended)
    failed = {name: task for name, task in tasks.items() if task["state"] == "FAILURE"}
    assert set(failed) == {ghost}
    assert "WorkerLost" in failed[ghost]["exception"]
    assert "died or froze" in failed[ghost]["result"]


async def test_a_turn_that_is_given_up_ends_as_failure_in_flower_and_one_that_is_cancelled_does_not(
    installation: Installation,
) -> None:
    script = "- when: hang\n  attempts: [[hang]]\n- attempts: [[{say: 'No marker.'}]]\n"
    used = installation.play(script, "m")
    port = free_port()
    with Supervisor([own_programs.flower_program(used, port, "pass")], logs=own_programs.ensure_state_dir(used)):
        installation.worker()
        await wait_until(lambda: [worker for worker in asked(port, "/workers?json=1")["data"] if worker["status"]])
        client = installation.client

        async def submitted(text: str) -> str:
            message = {"role": "user", "content": text}
            return await client.submitter.submit(
                TurnRequest(model="m", messages=(message,), session_id=text, policy={"step_marker": ("fail",)})
            )

        failed, stopped = await submitted("fail"), await submitted("hang")
        assert (await client.reader.await_result(failed, timeout=60)).outcome is Outcome.FAILED
        await wait_until(lambda: [task for task in tasks_of(port, stopped) if task["state"] == "STARTED"])
        await client.canceller.cancel(stopped)
        assert (await client.reader.await_result(stopped, timeout=60)).outcome is Outcome.CANCELLED
        states = await wait_until(
            lambda: {task["name"]: task["state"] for task in tasks_of(port, failed) if task["name"] == "turn.fail"}
        )
        assert states == {"turn.fail": "FAILURE"}
        ends = await wait_until(lambda: [t["state"] for t in tasks_of(port, stopped) if t["state"] != "STARTED"])
        assert "FAILURE" not in ends


async def test_flower_revokes_a_turns_task_and_its_pool_tab_grows_the_pool(installation: Installation) -> None:
    script = "- when: hang\n  attempts: [[hang]]\n"
    used, port = installation.play(script, "m", run_slots=2), free_port()
    with Supervisor([own_programs.flower_program(used, port, "pass")], logs=own_programs.ensure_state_dir(used)):
        installation.worker()
        await wait_until(lambda: [worker for worker in asked(port, "/workers?json=1")["data"] if worker["status"]])
        [name] = [worker["hostname"] for worker in asked(port, "/workers?json=1")["data"]]
        client, flower = installation.client, f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=flower, auth=("turns", "pass"), timeout=120) as operator:
            turn_id = await installation.ask("hang", model="m")
            [task] = await wait_until(lambda: [t for t in tasks_of(port, turn_id) if t["state"] == "STARTED"])
            page = (await wait_until(lambda: (got := operator.get(f"/worker/{name}")).is_success and got)).text
            pool = page.partition('id="tab-pool"')[2].partition("<!-- end pool tab -->")[0]
            assert re.search(
                r"worker.celery.pool:TurnPool.*Agent.slots\s*</td>\s*<td>\s*2", pool, re.DOTALL | re.IGNORECASE
            ), pool
            assert "task-terminate" in operator.get(f"/task/{task['uuid']}").text
            grown = operator.post(f"/api/worker/pool/grow/{name}", params={"n": 1})
            assert grown.is_success, grown.text
            revoked = operator.post(f"/api/task/revoke/{task['uuid']}", params={"terminate": "true"})
            assert revoked.is_success, revoked.text
            assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.CANCELLED
            await wait_until(lambda: [t["state"] for t in tasks_of(port, turn_id)] == ["REVOKED"])
            stats = lambda: operator.get("/api/workers", params={"refresh": "true"}).json()[name]["stats"]  # noqa: E731
            assert (await wait_until(stats))["pool"]["max-concurrency"] == 3


def test_what_an_operator_looks_for_stands_first_in_flower(settings: Settings) -> None:
    columns = (own_programs.flower_program(settings, 0, "pass").environ or {})["FLOWER_TASKS_COLUMNS"].split(",")
    assert (columns[0], columns[-1]) == ("kwargs", "uuid")
    assert repr({"turn_id": "turn-1", "attempt": 1}).startswith("{'turn_id'")

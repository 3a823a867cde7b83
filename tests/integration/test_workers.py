"""Which worker does what, which one is dead, and ordering them: real workers, real processes."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from celery import Celery

from api_client import api_keys as keys
from api_client.broker.celery_message import celery_settings
from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest, TurnState
from api_client.contract.worker_order import WorkerOrder
from api_client.contract.worker_reports import WorkerReport
from api_client.web.app.relay_server import create_app
from api_client.workers.fleet import WorkerRow
from api_client.workers.own_report import OwnReport
from api_client.workers.reports import read_exits
from tests.installation import Installation, WorkerProcess, command, environ_of, turns
from tests.support import wait_until
from tests.unit.web.conftest import caller

SLOW = "- attempts: [[{wait: 60}]]\n"


def asked(session_id: str, model: str = "scripted") -> TurnRequest:
    return TurnRequest(model=model, messages=({"role": "user", "content": "hello"},), session_id=session_id)


async def listed_workers(client: TurnsClient) -> tuple[WorkerRow, ...]:
    return (await client.workers.read_state()).workers


def listed(settings: Settings, code: int = 0) -> list[dict[str, Any]]:
    done = command(settings, "worker", "list", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["workers"]
    return found


async def test_a_worker_has_one_name_everywhere_and_says_what_it_does(installation: Installation) -> None:
    installation.play(SLOW, "slow")
    worker = installation.worker()
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(installation.settings))
    client = installation.client
    turn_id = await client.submitter.submit(asked("s", "slow"))
    await wait_until(lambda: is_in(client, turn_id, TurnState.RUNNING))

    async def lines_at_work() -> list[WorkerRow]:
        return [line for line in await listed_workers(client) if line.doing]

    at_work = await wait_until(lines_at_work)
    assert [(line.state, [each.turn_id for each in line.doing]) for line in at_work] == [("at work", [turn_id])]
    assert (await client.reader.read_turn(turn_id)).worker == at_work[0].name
    assert (await client.reader.read_attempts(turn_id))[0].worker == at_work[0].name
    there = {line.name for line in await listed_workers(client)}
    assert await wait_until(lambda: app.control.ping(list(there), timeout=10, limit=len(there)))
    told = {line["name"]: line for line in listed(installation.settings)}
    line = told[at_work[0].name]
    assert (line["pid"] in worker.children().values(), bool(line["version"]), line["silent_seconds"]) == (
        True,
        True,
        0,
    )
    assert at_work[0].name in worker.log_file.read_text()
    await client.canceller.cancel(turn_id)
    await client.reader.await_result(turn_id, timeout=60)


async def is_in(client: TurnsClient, turn_id: str, state: TurnState) -> bool:
    return (await client.reader.read_turn(turn_id)).state is state


async def test_a_worker_that_died_is_named_on_every_page_with_how_long_it_is_gone(installation: Installation) -> None:
    worker = installation.worker()
    client = installation.client
    names = {line.name for line in await wait_until(lambda: all_there(client, worker))}
    installation.bury(worker, 15)
    gone = await wait_until(lambda: all_gone(client))
    assert {line.name for line in gone} == names
    assert all(line.silent_seconds >= 15 for line in gone)
    assert {line["name"] for line in listed(installation.settings, code=1) if line["state"] == "gone"} == names
    async with caller(create_app(installation.settings)) as http:
        page = (await http.get("/workers")).text
    assert all(f"{name}</span>" in page for name in names)
    assert "silent for" in page


async def test_the_supervisor_of_a_worker_notes_what_its_process_died_of(installation: Installation) -> None:
    worker = installation.worker()
    client = installation.client
    await wait_until(lambda: all_there(client, worker))  # a process is ready before it reports
    number, pid = next(iter(worker.children().items()))
    os.kill(pid, signal.SIGKILL)
    [noted] = await wait_until(lambda: read_exits(client.store), 60)
    [line] = await wait_until(lambda: listed_workers(client))
    assert line.name.partition("@")[0].endswith(f"-{number}")
    assert (noted.worker, noted.pid, noted.signal) == (line.name, pid, "SIGKILL")


async def all_there(client: TurnsClient, worker: WorkerProcess) -> tuple[WorkerRow, ...]:
    """The lines of all processes of this worker; none before each has reported."""
    lines = await listed_workers(client)
    return lines if {line.pid for line in lines} == set(worker.children().values()) else ()


async def all_gone(client: TurnsClient) -> tuple[WorkerRow, ...]:
    lines = await listed_workers(client)
    return lines if all(line.state == "gone" for line in lines) else ()


async def test_a_quiet_worker_takes_nothing_new_until_it_is_resumed_and_a_drained_one_ends_for_good(
    installation: Installation,
) -> None:
    worker = installation.worker()
    client = installation.client
    lines = await wait_until(lambda: all_there(client, worker))
    names = [line.name for line in lines]
    for name in names:
        assert await client.workers.order_worker(name, WorkerOrder.QUIET) == name
    await wait_until(lambda: states_are(client, {"quiet"}))
    turn_id = await client.submitter.submit(asked("s"))
    done = installation.run("doctor", "--json")
    assert "quiet" in done.stdout
    assert await is_in(client, turn_id, TurnState.QUEUED)
    for name in names:
        subprocess.run(
            turns("worker", "resume", name), env=environ_of(installation.settings), check=True, capture_output=True
        )
    assert (await client.reader.await_result(turn_id, timeout=60)).outcome
    before = worker.children()
    for name in names:
        await client.workers.order_worker(name, WorkerOrder.DRAIN)
    await wait_until(lambda: worker.process.poll() is not None)
    assert worker.process.returncode == 0
    assert before
    left = {line.name: (line.state, line.doing) for line in await listed_workers(client)}
    assert left == dict.fromkeys(names, ("signed off", ())), "it stays in the list for a day"
    assert {line["state"] for line in listed(installation.settings)} == {"signed off"}, "and is not missed"
    assert await client.workers.read_reports() == []
    assert [line.action for line in await client.audit.read_lines()] == ["worker resume"] * len(names)


async def states_are(client: TurnsClient, wanted: set[str]) -> bool:
    return {line.state for line in await listed_workers(client)} == wanted


@pytest.mark.skipif(
    subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], check=False).returncode != 0,
    reason="no process ids of its own can be given to a process here",
)
async def test_workers_of_containers_with_one_host_name_and_the_same_process_ids_are_two(
    installation: Installation,
) -> None:
    installation.play(SLOW, "slow", run_slots=1)
    for _ in range(2):
        installation.worker(within=["unshare", "-p", "-f", "--mount-proc", "--kill-child"])
    client = installation.client

    async def both() -> Any:
        return len(found := await listed_workers(client)) > 1 and found

    lines = await wait_until(both)
    assert len({(line.pid, line.host) for line in lines}) == 1
    standing = await client.workers.read_state()
    assert (len(standing.recent_reports), standing.fleet.slots) == (2, 2)
    ids = [await client.submitter.submit(asked(f"s{number}", "slow")) for number in range(2)]
    for turn_id in ids:
        await wait_until(lambda turn_id=turn_id: is_in(client, turn_id, TurnState.RUNNING))
    assert {(await client.reader.read_turn(turn_id)).worker for turn_id in ids} == {line.name for line in lines}
    drained, other = (line.name for line in lines)
    assert command(installation.settings, "worker", "drain", drained).returncode == 0

    async def states() -> bool:
        return {line.name: line.state for line in await listed_workers(client)}[drained] != "at work"

    await wait_until(states)
    assert {line.name: line.state for line in await listed_workers(client)}[other] == "at work"
    for worker in installation.workers:
        worker.kill()  # unshare takes no SIGTERM


async def test_reports_of_workers_that_are_gone_are_bounded(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api_client.workers.own_report._REMEMBERED", 3)
    store, keys_ = installation.client.store.redis, Keys(installation.settings.namespace)
    for key in (keys_.workers, keys_.ended_workers):
        for number in range(9):
            await store.hset(key, f"worker-{number}-bcdf-1@h", WorkerReport(at=1000.0 + number).to_json())
    await OwnReport(installation.settings, "worker-9-bcdf-1@h", store).write_report(WorkerReport(at=1009.0))
    assert sorted(await store.hkeys(keys_.workers)) == [f"worker-{n}-bcdf-1@h".encode() for n in (7, 8, 9)]
    assert sorted(await store.hkeys(keys_.ended_workers)) == [f"worker-{n}-bcdf-1@h".encode() for n in (6, 7, 8)]


async def test_workers_are_shown_and_ordered_over_http_by_operators_alone(installation: Installation) -> None:
    installation.worker()
    made = {
        right: keys.add_key(installation.settings.keys_path, keys.ApiKey(name=right, hash="", owner=right, right=right))
        for right in ("user", "metrics", "operator")
    }
    async with (
        caller(create_app(installation.settings), host="203.0.113.7") as http,
        TurnsClient(installation.settings) as client,
    ):
        [name, *_] = [line.name for line in await wait_until(lambda: listed_workers(client))]

        async def status(method: str, path: str, right: str) -> int:
            answer = await http.request(method, path, headers={"authorization": f"Bearer {made[right]}"})
            return answer.status_code

        assert [await status("GET", "/v1/workers", right) for right in made] == [403, 200, 200]
        assert [await status("POST", f"/v1/workers/{name}/quiet", right) for right in made] == [403, 403, 200]
        assert await status("POST", f"/v1/workers/{name}/dance", "operator") == 400
        assert await status("POST", "/v1/workers/nobody/quiet", "operator") == 400
        await wait_until(lambda: is_quiet(client, name))
        assert await status("POST", f"/v1/workers/{name}/resume", "operator") == 200


async def is_quiet(client: TurnsClient, name: str) -> bool:
    return any(line.name == name and line.state == "quiet" for line in await listed_workers(client))

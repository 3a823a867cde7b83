"""A broker that is down, frozen, slow, full, read-only or empty: callers learn it at once, and turns continue later."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFound
from api_client.contract.turn import Outcome
from tests.fault.conftest import judged
from tests.fault.matrix import LEASE_SECONDS, Runs, Stage
from tests.support import WAIT_SECONDS, passes, processes_with, wait_until

SCRIPT = """
- when: "[held "
  attempts: [[{say: "Ich fange an ... "}, {wait_for: "{meet}/go"}, {say: "fertig.\\n\\n<!-- STEP: done -->"}]]
- attempts: [[{say: "Sofort.\\n\\n<!-- STEP: done -->"}]]
"""
#: How long a trouble lasts in seconds: longer than a lease.
TROUBLE_SECONDS = 1.2 * LEASE_SECONDS
#: Most processor time a waiting worker may use, as a part of the time that passes.
MOST_BUSY = 0.35
#: A caller hears within so long that nothing can be stored, in seconds, on any machine: it does not wait for ever.
SOON = 60.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("broker"), SCRIPT, run_slots=2) as made:
        made.start(workers=1, relay=True)
        yield made


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[TurnsClient]:
    (stage.meet / "go").unlink(missing_ok=True)
    async with TurnsClient(stage.settings) as made:
        yield made
    (stage.meet / "go").touch()


@pytest.fixture
async def http(stage: Stage) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=stage.url, timeout=60) as made:
        yield made


async def submit(http: httpx2.AsyncClient, text: str) -> httpx2.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    return await http.post("/v1/turns", json=body)


async def begun(http: httpx2.AsyncClient, client: TurnsClient, text: str) -> str:
    """Submit a turn and wait until its agent is in the middle of the answer."""
    turn_id: str = (await submit(http, text)).raise_for_status().json()["turn_id"]
    async for event in client.reader.follow_turn(turn_id):
        if event is not None and event.kind == "attempt.output":
            break
    return turn_id


class Reader:
    """Reads a turn's events to their end and keeps their numbers."""

    def __init__(self, http: httpx2.AsyncClient, turn_id: str) -> None:
        self.seen: list[int] = []
        self._http = http
        self._url = f"/v1/turns/{turn_id}/events"
        self._reading = asyncio.create_task(self._read())

    async def begun(self) -> None:
        await wait_until(lambda: self.seen)

    async def all(self) -> list[int]:
        await asyncio.wait_for(self._reading, WAIT_SECONDS)
        return self.seen

    async def _read(self) -> None:
        async with self._http.stream("GET", self._url) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    self.seen.append(json.loads(line.removeprefix("data: "))["seq"])


def busy_seconds(pid: int) -> float:
    """Return the processor time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Trouble:
    """A fault of the broker, and how to undo it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.pid = stage.broker.pid
        self._slowing: asyncio.Task[None] | None = None

    async def tell(self, *command: Any) -> None:
        with self.stage.store as store:
            store.execute_command(*command)

    async def down(self) -> Callable[[], Awaitable[None]]:
        self.stage.broker.kill()

        async def start() -> None:
            self.stage.broker.start()

        return start

    async def frozen(self) -> Callable[[], Awaitable[None]]:
        os.kill(self.pid, signal.SIGSTOP)

        async def go_on() -> None:
            os.kill(self.pid, signal.SIGCONT)

        return go_on

    async def full(self) -> Callable[[], Awaitable[None]]:
        await self.tell("CONFIG", "SET", "maxmemory", 1)
        return lambda: self.tell("CONFIG", "SET", "maxmemory", 0)

    async def read_only(self) -> Callable[[], Awaitable[None]]:
        await self.tell("REPLICAOF", "127.0.0.1", 1)
        return lambda: self.tell("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("name", ["down", "frozen", "full", "read_only"])
async def test_while_nothing_can_be_stored_callers_hear_it_at_once_and_afterwards_all_goes_on(
    name: str, stage: Stage, client: TurnsClient, http: httpx2.AsyncClient
) -> None:
    workers = stage.workers[0].children()
    turn_id = await begun(http, client, f"[held {name}]")
    reader = Reader(http, turn_id)
    await reader.begun()
    busy = {role: busy_seconds(pid) for role, pid in workers.items()}
    heal = await getattr(Trouble(stage), name)()
    began_at = time.monotonic()
    try:
        took = []
        for _ in range(2):
            asked_at = time.monotonic()
            answer = await submit(http, "hello")
            took.append(time.monotonic() - asked_at)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
            assert int(answer.headers["retry-after"]) > 0
        assert min(took) < SOON
        await wait_until(lambda: time.monotonic() - began_at > TROUBLE_SECONDS)
    finally:
        await heal()
    passed = time.monotonic() - began_at
    used = {role: busy_seconds(pid) - busy[role] for role, pid in workers.items()}
    assert all(seconds < MOST_BUSY * passed for seconds in used.values()), f"they spin: {used} in {passed:.1f} s"
    (stage.meet / "go").touch()
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.attempt, turn.strikes) == (Outcome.PASSED, 1, 0), "an outage is no turn's fault"
    assert await reader.all() == [event.seq for event in events]
    after = (await submit(http, "hello")).raise_for_status().json()["turn_id"]
    assert (await judged(client, after))[0].outcome is Outcome.PASSED
    assert stage.workers[0].children() == workers, "a worker crashed"
    assert not stage.relays[0].ended()


async def test_a_slow_broker_delays_but_nothing_fails(
    stage: Stage, client: TurnsClient, http: httpx2.AsyncClient
) -> None:
    workers = stage.workers[0].children()

    async def slow_down() -> None:
        with stage.store as store:
            while True:
                await asyncio.to_thread(store.execute_command, "CLIENT", "PAUSE", 100, "ALL")
                await passes(0.3, "two thirds of the time it answers")

    slowing, took = asyncio.create_task(slow_down()), []
    try:
        for number in range(3):
            asked_at = time.monotonic()
            answer = await submit(http, f"hello {number}")
            took.append(time.monotonic() - asked_at)
            turn, _ = await judged(client, answer.raise_for_status().json()["turn_id"])
            assert (turn.outcome, turn.delivery, turn.strikes) == (Outcome.PASSED, 1, 0)
    finally:
        slowing.cancel()
    assert min(took) < SOON
    assert stage.workers[0].children() == workers


async def test_a_broker_that_forgot_its_scripts_and_cut_every_connection_is_not_noticed(
    stage: Stage, client: TurnsClient, http: httpx2.AsyncClient, runs: Runs
) -> None:
    turn_id = await begun(http, client, "[held cut]")
    reader = Reader(http, turn_id)
    await reader.begun()
    with stage.store as store:
        for _ in range(3):
            store.execute_command("SCRIPT", "FLUSH")
            for kind in ("normal", "pubsub"):
                store.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            await passes(0.2, "between two cuts the connections come back")
    (stage.meet / "go").touch()
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery, turn.strikes) == (Outcome.PASSED, 1, 0)
    assert await reader.all() == [event.seq for event in events]
    assert runs.of(turn_id) == {1}


async def queued(stage: Stage, store: redis.Redis) -> bytes:
    """Return the key of the one list that contains the message of a waiting turn."""

    def found() -> list[bytes]:
        names = list(store.scan_iter(f"{stage.settings.namespace}:celery:*", _type="list"))
        return [name for name in names if b"helix.run" in name and store.llen(name) == 1]

    return bytes((await wait_until(found))[0])


@pytest.mark.parametrize("copies", [0, 10])
async def test_a_lost_message_is_announced_again_and_a_doubled_one_changes_nothing(
    copies: int, stage: Stage, client: TurnsClient, http: httpx2.AsyncClient, runs: Runs
) -> None:
    first, second = [await begun(http, client, f"[held {copies} {slot}]") for slot in ("a", "b")]  # no slot is free
    turn_id = (await submit(http, "hello")).raise_for_status().json()["turn_id"]
    with stage.store as store:
        queue = await queued(stage, store)
        sent = store.lrange(queue, 0, -1)
        store.delete(queue)
        for message in sent * copies:
            store.lpush(queue, message)
    (stage.meet / "go").touch()
    for one in (first, second, turn_id):
        turn, _ = await judged(client, one)
        assert (turn.outcome, turn.delivery, turn.strikes) == (Outcome.PASSED, 1, 0)
        assert runs.of(one) == {1}
    with stage.store as store:
        await wait_until(lambda: not store.llen(queue))
    assert runs.of(turn_id) == {1}


async def test_after_a_restart_without_its_data_the_broker_serves_new_turns_and_old_agents_are_stopped(
    stage: Stage, client: TurnsClient, http: httpx2.AsyncClient
) -> None:
    workers = stage.workers[0].children()
    turn_id = await begun(http, client, "[held empty]")
    stage.broker.kill()
    shutil.rmtree(stage.broker.directory / "appendonlydir")
    stage.broker.start()
    await wait_until(lambda: not processes_with(f"HELIX_AGENT_MARK={turn_id}"))
    assert (await http.get(f"/v1/turns/{turn_id}")).status_code == 404
    with pytest.raises(TurnNotFound):
        await client.reader.read_turn(turn_id)
    after = (await submit(http, "hello")).raise_for_status().json()["turn_id"]
    assert (await judged(client, after))[0].outcome is Outcome.PASSED
    assert stage.workers[0].children() == workers, "a worker crashed"
    with stage.store as store:
        names = [name.decode() for name in store.scan_iter(f"{stage.settings.namespace}:*")]
    assert not [name for name in names if turn_id in name], "a turn that is gone was brought back in part"

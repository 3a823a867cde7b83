"""Rows 62 to 65: what others put into the store or the broker stops no worker, and costs no other turn."""

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN, RUN_QUEUE
from api_client.contract.turn import Outcome, Turn, TurnRequest
from tests.installation import WorkerProcess, asked
from tests.support import playing, wait_until
from worker.processes.embedded_broker import EmbeddedBroker


@pytest.fixture
def used(private_settings: Settings) -> Settings:
    """A server of the test's own: what is put into its queues is for our worker alone."""
    script = '- attempts: [[say: "Antwort. <!-- STEP: done -->"]]\n'
    return playing(private_settings, script, validators=("step_marker",))


@pytest.fixture
async def client(used: Settings) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(used) as made:
        yield made


@pytest.fixture
def store(private_broker: EmbeddedBroker) -> redis.Redis:
    return redis.Redis.from_url(private_broker.url)


def request(session: str = "s") -> TurnRequest:
    return asked("Hallo", session, validators=("step_marker",))


async def passes(client: TurnsClient, session: str) -> Turn:
    return await has_passed(client, await client.submitter.submit(request(session)))


async def has_passed(client: TurnsClient, turn_id: str) -> Turn:
    async def ended() -> Turn | None:
        turn = await client.reader.read_turn(turn_id)
        return turn if turn.outcome else None

    turn: Turn = await wait_until(ended)
    assert turn.outcome is Outcome.PASSED, turn.error
    return turn


RECORDS: dict[str, dict[str, bytes | None]] = {
    "a missing field": {"state": None},
    "no request": {"request": None},
    "broken JSON": {"request": b"{"},
    "a request that is a list": {"request": b"[]"},
    "another version": {"v": b"99", "state": b"pondering"},
    "no UTF-8": {"request": b"\xff\xfe", "next": b"\xff"},
    "a number that is none": {"attempt": b"many", "deadline_at": b"soon"},
    "a value of 20 MB": {"request": b"x" * 20_000_000},
}


@pytest.mark.parametrize("damage", RECORDS)
async def test_62_a_damaged_record_holds_up_no_other_turn(
    damage: str, client: TurnsClient, used: Settings, store: redis.Redis, worker_process: Callable[..., WorkerProcess]
) -> None:
    broken = await client.submitter.submit(request("broken"))
    key = keys_for_turn(used.namespace, broken).turn(broken)
    for field, value in RECORDS[damage].items():
        store.hdel(key, field) if value is None else store.hset(key, field, value)
    store.hset(key, "a field of a newer version", b"7")
    worker = worker_process(settings=used)
    for number in range(2):
        await passes(client, f"s{number}")
    assert worker.process.poll() is None
    log = worker.log_file.read_text()
    assert "Traceback" not in log, log[-3000:]
    assert len(re.findall(broken, log)) < 60, "it is put aside, not tried again and again"


async def test_62_an_extra_field_is_left_alone(
    client: TurnsClient, used: Settings, store: redis.Redis, worker_process: Callable[..., WorkerProcess]
) -> None:
    turn_id = await client.submitter.submit(request())
    store.hset(keys_for_turn(used.namespace, turn_id).turn(turn_id), "mood", "good")
    worker_process(settings=used)

    async def ended() -> bool:
        return (await client.reader.read_turn(turn_id)).outcome is Outcome.PASSED

    await wait_until(ended)


def message(task: str = RUN, *, content_type: str = "application/json", body: str = "", **kwargs: Any) -> bytes:
    import base64

    payload = body or base64.b64encode(json.dumps([[], kwargs, {}]).encode()).decode()
    return json.dumps(
        {
            "body": payload,
            "content-encoding": "utf-8",
            "content-type": content_type,
            "headers": {
                "lang": "py",
                "task": task,
                "id": "x-1",
                "root_id": "x-1",
                "argsrepr": "()",
                "kwargsrepr": "{}",
            },
            "properties": {
                "correlation_id": "x-1",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": RUN_QUEUE},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": "x-1",
            },
        }
    ).encode()


#: A pickle that would write a file, if anybody loaded it.
PICKLE = "Y3Bvc2l4CnN5c3RlbQpwMAooUyd0b3VjaCAlcycKcDEKdHAyClJwMwou"
FORGED = {"turn_id": "turn-" + "0" * 32, "attempt": 1, "session_id": "s"}
MESSAGES = {
    "no JSON": b"this is no JSON",
    "a list": b"[]",
    "a number": b"7",
    "no body": b'{"headers": {}, "properties": {}}',
    "a pickle": message(content_type="application/x-python-serialize", body=PICKLE),
    "an unknown task": message("os.system", command="true"),
    "extra arguments": message(**FORGED, shell="true"),
    "missing arguments": message(),
    "a forged turn": message(**FORGED),
    "ids of other types": message(turn_id=["t0"], attempt={"x": 1}, session_id=None),
    "a path as turn": message(turn_id="../../etc/passwd", attempt=1, session_id="s"),
    "an endless attempt": message(turn_id=FORGED["turn_id"], attempt=10**30, session_id="s"),
    "10 MB": message(**FORGED, more="x" * 10_000_000),
}


async def test_63_messages_of_others_are_refused_and_the_worker_goes_on(
    client: TurnsClient, used: Settings, store: redis.Redis, worker_process: Callable[..., WorkerProcess]
) -> None:
    worker = worker_process(settings=replace(used, stalled_seconds=30.0))
    pids = worker.children()
    queues = {f"{used.namespace}:celery:{queue}" for queue in (RUN_QUEUE, CHECK_QUEUE)}
    for number, (name, raw) in enumerate(MESSAGES.items()):
        for queue in queues:
            store.lpush(queue, raw)
        await passes(client, f"after {number}: {name}")
    await wait_until(lambda: not any(store.llen(queue) for queue in queues))
    assert worker.process.poll() is None
    assert worker.children() == pids, "an item that is no message does not end a worker and the agents it runs"
    assert "message.refused" in worker.log_file.read_text()


async def test_64_lists_that_name_no_turn_hold_up_nobody(
    client: TurnsClient, used: Settings, store: redis.Redis, worker_process: Callable[..., WorkerProcess]
) -> None:
    keys = Keys(used.namespace)
    nobody = "turn-" + "f" * 32
    store.zadd(keys.due, {nobody: 1, "no turn id at all": 1, b"\xff\xfe": 1})
    store.zadd(keys.suspended, {nobody: 1})
    lost = await client.submitter.submit(request("lost"))
    store.zrem(keys.due, lost)  # a record that nobody looks after
    worker = worker_process(settings=used)
    await passes(client, "s")
    assert [turn.turn_id for turn in await client.inbox.list_suspended()] == []
    assert worker.process.poll() is None
    await has_passed(client, lost)  # its message was in the queue


async def test_65_what_others_shout_on_a_turns_channel_is_not_believed(
    client: TurnsClient, used: Settings, store: redis.Redis, worker_process: Callable[..., WorkerProcess]
) -> None:
    turn_id = await client.submitter.submit(request())
    channel = keys_for_turn(used.namespace, turn_id).wake_up_channel(turn_id)
    forged = json.dumps({"seq": 2, "epoch": "e", "at": 1, "kind": "turn.finished", "data": {"outcome": "failed"}})
    seen: list[str] = []
    async for event in client.reader.follow_turn(turn_id):
        if event is None:
            continue
        if not seen:
            for garbage in (b"", b"\xff", b"{", b"[]", b"7", forged.encode(), b"x" * 1_000_000):
                store.publish(channel, garbage)
            worker_process(settings=used)
        seen.append(f"{event.seq} {event.kind}")
    assert seen[-1].endswith("turn.finished")
    assert [int(line.split()[0]) for line in seen] == list(range(1, len(seen) + 1))
    assert (await client.reader.read_turn(turn_id)).outcome is Outcome.PASSED

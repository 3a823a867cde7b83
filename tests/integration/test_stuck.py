"""What is stuck, as doctor, overview, top, /readyz and /metrics say it, over a real store in each trouble."""

import html
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.web.app.relay_server import create_app
from tests.installation import command
from tests.integration.engine import Bench
from tests.support import WAIT_SECONDS, wait_for, wait_until
from tests.unit.web.conftest import caller
from worker.cli.checks import workers
from worker.cli.checks.machine import check_machine
from worker.processes.embedded_broker import EmbeddedBroker, find_server

Trouble = Callable[[EmbeddedBroker], None]


def ask(broker: EmbeddedBroker, *command: Any) -> Any:
    with redis.Redis.from_url(broker.url) as server:
        return server.execute_command(*command)


def memory_full(broker: EmbeddedBroker) -> None:
    ask(broker, "CONFIG", "SET", "maxmemory", "1")


def replica(broker: EmbeddedBroker) -> None:
    ask(broker, "REPLICAOF", "127.0.0.1", "1")


def password(broker: EmbeddedBroker) -> None:
    ask(broker, "CONFIG", "SET", "requirepass", "secret")


def doctor(settings: Settings) -> list[dict[str, str]]:
    done = command(settings, "doctor", "--json")
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    assert done.returncode == 1, found
    return found


def top(settings: Settings) -> str:
    done = command(settings, "stats", "top", "--once")
    return done.stdout + done.stderr


async def pages(settings: Settings) -> tuple[httpx2.Response, httpx2.Response]:
    """/readyz and /overview."""
    async with caller(create_app(settings)) as http:
        return await http.get("/readyz"), await http.get("/overview")


@pytest.mark.parametrize(
    ("trouble", "word", "fix"),
    [
        (memory_full, "OOM", "raise maxmemory"),
        (replica, "READONLY", "name the master"),
        (password, "NOAUTH", "put it into the address"),
    ],
    ids=["OOM", "READONLY", "NOAUTH"],
)
async def test_a_store_that_refuses_is_said_in_its_own_word_everywhere_and_alone(
    private_settings: Settings, private_broker: EmbeddedBroker, trouble: Trouble, word: str, fix: str
) -> None:
    trouble(private_broker)
    await everybody_says(private_settings, word, fix)


async def everybody_says(settings: Settings, word: str, fix: str) -> None:
    """Each says it; where a slow machine had somebody give up the store before it could refuse, all are asked again."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return await everybody_says_now(settings, word, fix)
        except AssertionError:
            if time.monotonic() > until:
                raise


async def everybody_says_now(settings: Settings, word: str, fix: str) -> None:
    wrong = [found for found in doctor(settings) if found["state"] == "wrong"]
    assert [found["check"] for found in wrong] == ["store"], "what follows from a cause is not said"
    assert word in wrong[0]["message"]
    assert wrong[0]["fix"].startswith(fix)
    seen = top(settings)
    assert word in seen
    assert fix in seen
    ready, overview = await pages(settings)
    assert (ready.status_code, ready.json()["code"]) == (503, word)
    assert ready.json()["fix"].startswith(fix)
    shown = html.unescape(overview.text)
    assert word in shown
    assert fix in shown
    assert "turns run worker" not in shown
    async with TurnsClient(settings) as client:
        with pytest.raises(StoreUnavailable, match=word):
            await client.store.await_reply(client.store.redis.set(Keys(settings.namespace).written, "1"))


def refuses(broker: EmbeddedBroker) -> bool:
    """Write until the server cannot any more."""
    try:
        ask(broker, "SET", "filler", "x" * 1000)
    except redis.ResponseError:
        return True
    return False


@contextmanager
def loading(folder: Path) -> Iterator[str]:
    """A server that reads its data for a minute, and answers about every 1,000 keys; yields its address."""
    source = folder / "full"
    with EmbeddedBroker(source) as broker, redis.Redis.from_url(broker.url) as server:
        for part in range(100):
            server.eval("for i = 1, 5000 do redis.call('set', ARGV[1] .. i, 'x') end", 0, f"key-{part}-")
    socket = folder / "slow.sock"
    command = [find_server().path, "--port", "0", "--unixsocket", socket, "--dir", source, "--appendonly", "yes"]
    slow = ["--save", "", "--key-load-delay", "50", "--loading-process-events-interval-bytes", "1024"]
    process = subprocess.Popen([*map(str, command), *slow], stdout=subprocess.DEVNULL, stderr=sys.stderr)
    try:
        wait_for(socket.exists)
        yield f"unix://{socket}"
    finally:
        process.kill()
        process.wait()


async def test_a_store_that_still_reads_its_data_is_said_to_be_so(settings: Settings, tmp_path: Path) -> None:
    with loading(tmp_path) as url:
        on_it = replace(settings, broker_url=url, store_url=url)

        def doctor_says() -> bool:
            wrong = [found for found in doctor(on_it) if found["state"] == "wrong"]
            assert [found["check"] for found in wrong] == ["store"]
            return "LOADING" in wrong[0]["message"]

        wait_for(doctor_says)  # a server that reads answers slowly, and time runs out
        wait_for(lambda: "LOADING" in top(on_it))
        await wait_until(lambda: pages_say(on_it, "LOADING"))


async def pages_say(settings: Settings, word: str) -> bool:
    ready, overview = await pages(settings)
    assert (ready.status_code, overview.status_code) == (503, 503)
    return ready.json().get("code") == word and word in overview.text


def told(settings: Settings, **more: Any) -> None:
    """Two workers that go on living for an hour and have free slots, one for each kind of work."""
    with redis.Redis.from_url(settings.redis_url) as server:
        for queue in (RUN_QUEUE, CHECK_QUEUE):
            facts = {
                "at": time.time() + 3600,
                "host": "h",
                "pid": 1,
                "queues": [queue],
                "slots": 4,
                "free": 3,
                "stalled": False,
                "check_free": 2,
            }
            server.hset(Keys(settings.namespace).workers, queue, json.dumps(facts | {"sick": "", "took_at": 0} | more))


async def test_what_waits_behind_a_suspended_turn_alarms_nobody_however_long_it_waits(bench: Bench) -> None:
    suspended = (await bench.suspended(session_id="asks")).turn_id
    behind = await bench.submit(session_id="asks")
    for turn_id in (suspended, behind):
        bench.store.hincrby(bench.keys.turn(turn_id), "created_at", -1_000_000)
    bench.store.hincrby(bench.keys.turn(suspended), "suspended_at", -1_000_000)
    told(bench.settings)
    standing = await bench.client.workers.read_state()
    assert (standing.alerts, standing.waiting, standing.stuck) == ((), (), 0)
    assert standing.waiting_since == 0.0
    assert standing.at - standing.suspended_since >= 1000
    assert "could run" not in top(bench.settings)
    _, overview = await pages(bench.settings)
    assert "nothing is stuck" in overview.text


async def test_a_turn_that_could_run_and_does_not_is_stuck_for_everybody(bench: Bench) -> None:
    turn_id = await bench.submit(session_id="forgotten")
    told(bench.settings)
    assert not (await bench.client.workers.read_state()).alerts
    turn, announced = bench.keys.turn(turn_id), int((time.time() - 1000) * 1000)
    bench.store.hset(turn, mapping={"announced": 0, "announced_at": announced})  # not overdue: a reaper looks at it
    bench.store.hincrby(turn, "created_at", -1_000_000)
    bench.store.zadd(bench.keys.due, {turn_id: int((time.time() + 600) * 1000)})
    words = "1 turns could run and have waited for"  # 16 minutes, or more on a slow machine
    [alert] = (await bench.client.workers.read_state()).alerts
    assert re.match(rf"{words} \d\d min", alert.message)
    assert (await bench.client.workers.read_state()).stuck == 1
    assert words in top(bench.settings)
    assert words in " ".join(found["message"] for found in doctor(bench.settings))
    _, overview = await pages(bench.settings)
    assert words in overview.text
    told(bench.settings, free=0)
    [alert] = (await bench.client.workers.read_state()).alerts
    assert (alert.check, alert.severity) == ("slot", "warning"), "all slots are busy: it waits for its place"


async def test_a_disk_without_room_is_told_by_overview_top_and_readyz_as_by_doctor(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40, 2**20))
    async with TurnsClient(settings) as client:
        standing = await client.workers.read_state()
    [told] = [alert for alert in standing.alerts if alert.check == "disk"]
    [finding] = [each for each in check_machine(settings) if each.check == "disk"]
    assert (told.message, told.severity, told.fix) == (finding.message, finding.state, finding.fix)
    assert told.message == f"1 MiB (0%) free at {settings.root}"
    assert "disk" in standing.why
    assert [each.check for each in workers.report_alerts(standing)].count("disk") == 0

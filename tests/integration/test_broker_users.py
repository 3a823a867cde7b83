"""The broker as compose/broker starts it: each role can do all its work, and nothing more."""

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.store.commands import find_queue
from tests.installation import RelayProcess, WorkerProcess, asked, run
from tests.on_loop import Ledger
from tests.ports import free_port
from tests.support import wait_for
from worker.processes.embedded_broker import find_server

START = Path(__file__).parents[2] / "compose" / "broker" / "start.sh"
ROLES = ("relay", "worker", "flower", "operator")


@dataclass(frozen=True)
class Guarded:
    """The running broker: each role's address, and settings for it."""

    urls: dict[str, str]
    settings: Settings

    def settings_of(self, role: str) -> Settings:
        return replace(self.settings, broker_url=self.urls[role], store_url=self.urls[role])


@pytest.fixture
def guarded(settings: Settings, tmp_path: Path) -> Iterator[Guarded]:
    """compose/broker/start.sh with the embedded server's binary, on a port of its own."""
    port = free_port()
    folder = tmp_path / "secrets"
    folder.mkdir()
    urls = {role: f"redis://{role}:{secrets.token_hex(12)}@127.0.0.1:{port}/0" for role in ROLES}
    for role, url in urls.items():
        (folder / f"{role}_url").write_text(f"{url}\n")
    (tmp_path / "data").mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(tmp_path),
        "SECRETS": str(folder),
        "DIRECTORY": str(tmp_path / "data"),
        "SERVER": str(find_server().path),
        "HELIX_NAMESPACE": settings.namespace,
    }
    with (tmp_path / "broker.log").open("w") as log:
        process = subprocess.Popen([START, "--port", str(port), "--bind", "127.0.0.1"], env=environ, stdout=log)
    try:
        wait_for(lambda: _pings(f"redis://health@127.0.0.1:{port}/0") or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "broker.log").read_text()
        yield Guarded(urls, settings)
    finally:
        process.kill()
        process.wait(60)


def _pings(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, password="any") as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


async def test_a_whole_turn_is_submitted_carried_out_followed_counted_and_watched(
    guarded: Guarded, worker_process: Callable[..., WorkerProcess]
) -> None:
    worker = worker_process(settings=guarded.settings_of("worker"))
    relay = RelayProcess(guarded.settings_of("relay"))
    relay.start()
    try:
        wait_for(lambda: httpx2.get(f"{relay.url}/readyz", timeout=60).status_code == 200)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
        answer = httpx2.post(f"{relay.url}/v1/turns", json=body, timeout=60).json()
        events = httpx2.get(f"{relay.url}/v1/turns/{answer['turn_id']}/events", timeout=60).text
        assert "event: turn.finished" in events
    finally:
        relay.kill()
    async with TurnsClient(guarded.settings_of("operator")) as client:
        turn = await client.reader.read_turn(answer["turn_id"])
        assert turn.outcome is not None
        waiting = await client.submitter.submit(asked("hello", "other"))
        await client.reader.await_result(waiting, timeout=60)
    assert "NOPERM" not in worker.log_file.read_text()
    done = run(guarded.settings_of("operator"), "doctor", "--json")
    assert done.returncode == 0, done.stdout


async def test_a_relays_user_lines_turns_up_cancels_them_and_sees_their_places(
    guarded: Guarded, tmp_path: Path
) -> None:
    worker, keys = guarded.settings_of("worker"), Keys(guarded.settings.namespace)
    await asyncio.to_thread(lambda: Ledger(worker, "w").release_turns(0))  # a worker that knows the line
    with redis.Redis.from_url(guarded.urls["worker"]) as store:
        async with TurnsClient(guarded.settings_of("relay")) as client:
            ids = [await client.submitter.submit(asked("hello", f"s-{number}")) for number in range(5)]
            assert (store.llen(find_queue(worker)), store.zcard(keys.waiting)) == (2, 3)
            assert (await client.sessions.find_position(ids[-1], "s-none")).waiting == 5
            await client.canceller.cancel(ids[-1])
        assert (store.llen(find_queue(worker)), store.zcard(keys.waiting)) == (2, 2)


def test_the_operator_takes_and_restores_a_backup_and_nobody_else_does(guarded: Guarded, tmp_path: Path) -> None:
    operator = guarded.settings_of("operator")
    submitted = run(operator, "submit", "hello", "--model", "scripted", "--json")
    turn_id = json.loads(submitted.stdout)["turn_id"]
    refused = run(guarded.settings_of("relay"), "data", "backup", str(tmp_path / "refused"))
    assert (refused.returncode, "+psync" in refused.stderr) == (2, True)
    assert not (tmp_path / "refused").exists()
    assert run(operator, "data", "backup", str(tmp_path / "backup")).returncode == 0
    with redis.Redis.from_url(guarded.urls["operator"]) as client:
        for key in client.scan_iter(match=f"{guarded.settings.namespace}:*"):
            client.delete(key)
    shown = run(operator, "turn", "show", turn_id)
    assert shown.returncode == 1
    (tmp_path / "elsewhere").mkdir()
    restored = run(replace(operator, root=tmp_path / "elsewhere"), "data", "restore", str(tmp_path / "backup"))
    assert restored.returncode == 0, restored.stderr
    assert run(operator, "turn", "show", turn_id).returncode == 0


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_empty_configure_debug_or_look_beyond_the_namespace(guarded: Guarded, role: str) -> None:
    namespace = guarded.settings.namespace
    with redis.Redis.from_url(guarded.urls[role]) as client:
        client.ping()
        for command in (
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("CONFIG", "SET", "dir", "/tmp"),
            ("KEYS", "*"),
            ("ACL", "LIST"),
            ("SHUTDOWN",),
            ("REPLICAOF", "NO", "ONE"),
            ("MODULE", "LIST"),
            ("SCRIPT", "FLUSH"),
            ("MONITOR",),
            ("GET", "another:key"),
            ("SET", "another:key", "x"),
            ("PUBLISH", "another:channel", "x"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
        if role == "flower":
            for command in (("HGETALL", Keys(namespace).turn("x")), ("EVAL", "return 1", "0")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
        if role in {"relay", "operator"}:
            for command in (("RPOP", f"{namespace}:celery:helix.run"), ("BRPOP", f"{namespace}:celery:helix.run", "1")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
        if role not in {"relay", "operator"}:  # the relay's /metrics say how much memory the store has left
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command("INFO")


def test_nobody_gets_in_without_a_password(guarded: Guarded) -> None:
    port = guarded.urls["relay"].rpartition(":")[2].partition("/")[0]
    with redis.Redis.from_url(f"redis://127.0.0.1:{port}/0") as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    with redis.Redis.from_url(f"redis://health:x@127.0.0.1:{port}/0") as client:
        client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get(f"{guarded.settings.namespace}:x")


def test_a_missing_or_weak_secret_stops_the_start_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "relay_url").write_text("redis://relay:short@broker:6379/0")
    environ = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "SECRETS": str(tmp_path)}
    done = subprocess.run([START], env=environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert "relay_url must hold redis://relay:PASSWORD@broker" in done.stderr

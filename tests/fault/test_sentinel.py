"""A real Sentinel set-up from the same binary: the master is killed, a replica takes over, and the turn goes on.

Replication is asynchronous: what the replica had not received when the master died is lost (docs/reliability.md). The
test waits for the replica before the kill, so it judges the fail-over, not the luck.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.sentinel import Sentinel

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.contract.values.sentinels import Sentinels
from tests.conftest import WorkerProcess
from tests.fault.conftest import Meeting, judged, message, with_script
from tests.support import wait_for, wait_until
from worker.processes.broker import find_server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SentinelSetUp:
    """A master, a replica and three sentinels, all real processes on loopback."""

    def __init__(self, directory: Path) -> None:
        self.binary = str(find_server().path)
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master_port, self.replica_port = free_port(), free_port()
        self.master = self._server(self.master_port)
        self._server(self.replica_port, "--replicaof", "127.0.0.1", str(self.master_port))
        self.replica = redis.Redis(port=self.replica_port)
        wait_for(lambda: self._info(self.replica).get("master_link_status") == "up")
        ports = [free_port() for _ in range(3)]
        for port in ports:
            self._sentinel(port)
        self.url = f"sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/turns/0"
        self.sentinel = Sentinel([("127.0.0.1", port) for port in ports], socket_timeout=1)
        wait_for(lambda: all(self._sees_all(port) for port in ports))

    def _info(self, server: redis.Redis) -> dict[str, object]:
        try:
            return dict(server.info("replication"))
        except redis.RedisError:
            return {}

    def _sees_all(self, port: int) -> bool:
        try:
            state = redis.Redis(port=port).sentinel_master("turns")
        except redis.RedisError:
            return False
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([self.binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def _server(self, port: int, *more: str) -> subprocess.Popen[bytes]:
        home = self.directory / str(port)
        home.mkdir()
        common = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--appendonly", "yes", "--save", "")
        return self._start(*common, *more)

    def _sentinel(self, port: int) -> None:
        config = self.directory / f"sentinel-{port}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.directory}\n"
            f"sentinel monitor turns 127.0.0.1 {self.master_port} 2\n"
            "sentinel down-after-milliseconds turns 1000\n"
            "sentinel failover-timeout turns 5000\n"
        )
        self._start(str(config), "--sentinel")

    def kill_master(self) -> None:
        """Kill it once the replica has everything."""
        redis.Redis(port=self.master_port).execute_command("WAIT", 1, 2000)
        self.master.kill()
        self.master.wait(10)

    def failed_over(self) -> bool:
        """True once the sentinels name the former replica."""
        try:
            return bool(self.sentinel.discover_master("turns")[1] == self.replica_port)
        except redis.RedisError:
            return False

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[SentinelSetUp]:
    (tmp_path / "sentinel").mkdir()
    made = SentinelSetUp(tmp_path / "sentinel")
    yield made
    made.stop()


async def test_a_turn_survives_the_fail_over_of_its_store_and_broker(
    set_up: SentinelSetUp, settings: Settings, meeting: Meeting, worker_process: Callable[..., WorkerProcess]
) -> None:
    scripted = with_script(replace(settings, store_url=set_up.url, broker_url=set_up.url, lease_seconds=1.5), meeting)
    worker_process(settings=scripted)
    async with TurnsClient(scripted) as client:
        turn_id = await client.submit(message("held"))
        await wait_until(lambda: meeting.begun)
        set_up.kill_master()
        await wait_until(set_up.failed_over)
        meeting.go()
        turn, _ = await judged(client, turn_id)
        assert (turn.outcome, turn.attempt) == (Outcome.PASSED, 1)
        again = await client.submit(message("quick", "after the fail-over"))
        assert (await client.result(again, timeout=30)).outcome is Outcome.PASSED


def test_an_address_names_nodes_master_and_database() -> None:
    found = Sentinels.parse("sentinel://:geheim@a:1,b:2/turns/3")
    assert found == Sentinels((("a", 1), ("b", 2)), "turns", 3, "geheim")
    assert Sentinels.parse("redis://a:1/0") is None
    for bad in ("sentinel://a:1", "sentinel:///turns", "sentinel://a/turns", "sentinel://a:x/turns"):
        with pytest.raises(ValueError, match="sentinel://host"):
            Sentinels.parse(bad)

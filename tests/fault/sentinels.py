"""A real Sentinel set-up of the embedded server's binary: a master, replicas and three sentinels on loopback."""

import signal
import subprocess
from pathlib import Path

import redis
from redis.sentinel import Sentinel

from tests.ports import free_port
from tests.support import wait_for
from worker.cli.checks.broker import count_online_replicas
from worker.processes.embedded_broker import find_server


class SentinelSetUp:
    """A master, replicas and three sentinels, all real processes.

    ``url`` is for HELIX_STORE_URL; ``ports`` has master and replicas, the first master first.
    """

    def __init__(self, directory: Path, *, replicas: int = 1, options: tuple[str, ...] = ()) -> None:
        self.binary = str(find_server().path)
        self.directory = directory
        self._options = options
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        self.ports = [free_port() for _ in range(replicas + 1)]
        first, *others = self.ports
        self.start(first)
        for port in others:
            self.start(port, "--replicaof", "127.0.0.1", str(first))
        wait_for(lambda: all(self._info(port).get("master_link_status") == "up" for port in others))
        nodes = [free_port() for _ in range(3)]
        for port in nodes:
            self._sentinel(port, first)
        self.url = f"sentinel://{','.join(f'127.0.0.1:{port}' for port in nodes)}/turns/0"
        self._asked = Sentinel([("127.0.0.1", port) for port in nodes], socket_timeout=1)
        wait_for(lambda: all(self._sees_all(port) for port in nodes))

    def start(self, port: int, *more: str) -> None:
        """Start a server on the data that it left, if there are any; without ``--replicaof`` it is a master."""
        home = self.directory / str(port)
        home.mkdir(exist_ok=True)
        common = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--appendonly", "yes", "--save", "")
        self._servers[port] = self._run(*common, *self._options, *more)

    def signal(self, port: int, number: signal.Signals) -> None:
        """Send a signal to a server; after SIGKILL, wait until the server is gone."""
        self._servers[port].send_signal(number)
        if number == signal.SIGKILL:
            self._servers[port].wait(60)

    def client(self, port: int) -> redis.Redis:
        """Return a client of one server, be it master or replica."""
        return redis.Redis(port=port, socket_timeout=5)

    def master(self) -> int:
        """Return the port of the master that the sentinels name, or 0 if they do not answer."""
        try:
            return int(self._asked.discover_master("turns")[1])
        except redis.RedisError:
            return 0

    def in_step(self, port: int) -> int:
        """Return how many replicas of a server have caught up and may be promoted."""
        others = [self._info(each) for each in self.ports if each != port]
        alike = [each for each in others if each.get("master_port") == port and each.get("slave_priority") != 0]
        return min(count_online_replicas(self._info(port)), len(alike))

    def behind(self, port: int, master: int) -> bool:
        """Return True if a server is a replica of this master and waits for its first copy."""
        found = self._info(port)
        return found.get("master_port") == master and found.get("master_link_status") == "down"

    def stop(self) -> None:
        for process in (*self._servers.values(), *self._sentinels):
            process.kill()
            process.wait(60)

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self.binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _info(self, port: int) -> dict[str, object]:
        try:
            return dict(self.client(port).info("replication"))
        except redis.RedisError:
            return {}

    def _sees_all(self, port: int) -> bool:
        try:
            state = redis.Redis(port=port).sentinel_master("turns")
        except redis.RedisError:
            return False
        return bool(state["num-slaves"] == len(self.ports) - 1 and state["num-other-sentinels"] == 2)

    def _sentinel(self, port: int, master: int) -> None:
        config = self.directory / f"sentinel-{port}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.directory}\n"
            f"sentinel monitor turns 127.0.0.1 {master} 2\n"
            "sentinel down-after-milliseconds turns 4000\n"
            "sentinel failover-timeout turns 5000\n"
        )
        self._sentinels.append(self._run(str(config), "--sentinel"))

"""A real Redis Cluster of the embedded server's binary on loopback: masters, each with a replica."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import redis

from api_client.store.cluster import find_master, find_slot
from tests.ports import free_port
from tests.support import wait_for
from worker.processes.embedded_broker import find_server

_SLOTS = 16384


class ClusterSetUp:
    """A cluster of real processes: masters, and a replica of each.

    ``url`` is for HELIX_STORE_URL; ``ports`` has all nodes, the first masters first.
    """

    def __init__(self, directory: Path, *, masters: int = 3, options: tuple[str, ...] = ()) -> None:
        self._binary = os.environ.get("TESTS_SERVER") or str(find_server().path)
        self._directory, self._options = directory, options
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        self.ports = [free_port() for _ in range(2 * masters)]
        self._buses = {port: free_port() for port in self.ports}
        for port in self.ports:
            self.start(port)
        first, *others = self.ports
        wait_for(lambda: all(self._answers(port) for port in self.ports))
        for port in others:
            self.client(first).execute_command("CLUSTER", "MEET", "127.0.0.1", port, self._buses[port])
        bounds = [number * _SLOTS // masters for number in range(masters + 1)]
        for number, port in enumerate(self.ports[:masters]):
            self.client(port).execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        wait_for(lambda: all(len(self._nodes(port)) == len(self.ports) for port in self.ports))
        for master, replica in zip(self.ports[:masters], self.ports[masters:], strict=True):
            self.client(replica).execute_command("CLUSTER", "REPLICATE", self.id_of(master))
        wait_for(self.whole)
        self.url = f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in self.ports[:2])}"

    def start(self, port: int) -> None:
        """Start a node on the data that it left, if there are any."""
        home = self._directory / str(port)
        home.mkdir(exist_ok=True)
        command = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--appendonly", "yes", "--save", ""]
        command += [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--cluster-port",
            str(self._buses[port]),
        ]
        command += ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", *self._options]
        with (home / "log").open("ab") as log:
            self._servers[port] = subprocess.Popen([self._binary, *command], stdout=log, stderr=log)

    def signal(self, port: int, number: signal.Signals) -> None:
        """Send a signal to a node; after SIGKILL, wait until the node is gone."""
        self._servers[port].send_signal(number)
        if number == signal.SIGKILL:
            self._servers[port].wait(60)

    def client(self, port: int) -> redis.Redis:
        """Return a client of one node, be it master or replica."""
        return redis.Redis(port=port, socket_timeout=5)

    def id_of(self, port: int) -> str:
        found: bytes = self.client(port).execute_command("CLUSTER", "MYID")
        return found.decode()

    def owner(self, namespace: str) -> int:
        """Return the port of the master that has an installation's keys, or 0 while the nodes disagree."""
        slot, said = find_slot(namespace), set[int]()
        for port in self.ports:
            with suppress(redis.RedisError):
                content = self.client(port).execute_command("CLUSTER INFO")["cluster_state"] == "ok"
                found = find_master(self.client(port).execute_command("CLUSTER SLOTS"), slot, "")
                said.add(found[1] if found and content else 0)
        return said.pop() if len(said) == 1 else 0

    def in_step(self, port: int) -> bool:
        """Return True if a master has a replica that has caught up."""
        with suppress(redis.RedisError):
            info = self.client(port).info("replication")
            slave = info.get("slave0")
            return info["role"] == "master" and isinstance(slave, dict) and slave.get("state") == "online"
        return False

    def replica_of(self, port: int) -> int:
        return int(self.client(port).info("replication")["slave0"]["port"])

    def whole(self) -> bool:
        """Return True if every node answers and every master has a replica that has caught up."""
        with suppress(redis.RedisError):
            states = [self.client(port).execute_command("CLUSTER INFO")["cluster_state"] for port in self.ports]
            masters = [port for port in self.ports if self.client(port).info("replication")["role"] == "master"]
            return set(states) == {"ok"} and 2 * len(masters) == len(self.ports) and all(map(self.in_step, masters))
        return False

    def move(self, namespace: str, *, key_by_key: bool = False) -> int:
        """Move the slot of an installation's keys to another master while it is in use; return that master's port."""
        slot, source = find_slot(namespace), wait_for(lambda: self.owner(namespace))
        roles = {port: self.client(port).info("replication")["role"] for port in self.ports if self._answers(port)}
        target = next(port for port, role in roles.items() if role == "master" and port != source)
        if key_by_key:  # as redis-cli --cluster reshard did before servers moved a slot as a whole
            self._move_keys(slot, source, target)
        else:
            self.client(source).execute_command(
                "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target)
            )
        wait_for(lambda: self.owner(namespace) == target)
        return target

    def _move_keys(self, slot: int, source: int, target: int) -> None:
        old, new = self.client(source), self.client(target)
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            old.execute_command("MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys)
        for client in (new, old):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def stop(self) -> None:
        for process in self._servers.values():
            process.kill()
            process.wait(60)

    def _answers(self, port: int) -> bool:
        with suppress(redis.RedisError):
            return bool(self.client(port).ping())
        return False

    def _nodes(self, port: int) -> dict[str, object]:
        found: dict[str, object] = self.client(port).execute_command("CLUSTER NODES")
        return found

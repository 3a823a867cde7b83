"""What a real worker process has open, and asks while idle: ``python -m tests.lab.bench.connections [--seconds 30]``.

For store and broker on one server, and on two: idle, and the most while turns run, as many at once as there are slots.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.installation import WorkerProcess, end_all, settings_on
from tests.ports import free_port
from tests.support import playing, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

_ESTABLISHED = "01"
_TURNS, _SLOTS = 200, 16


def ports_of(pid: int, server: int) -> set[int]:
    """The local ports of a process's TCP connections to a port of this machine."""
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(each.readlink()))
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if state == _ESTABLISHED and inode in inodes and int(remote[-4:], 16) == server:
            found.add(int(local[-4:], 16))
    return found


class Watched:
    """A real worker of one process, and its connections to the servers."""

    def __init__(self, settings: Settings, servers: list[redis.Redis]) -> None:
        self.settings, self._servers = settings, servers
        self.worker = WorkerProcess(settings, 1)
        self.worker.wait_ready()
        self._pid = self.worker.children()["1"]

    def last_commands(self) -> list[str]:
        """The last command over each connection."""
        found = []
        for server in self._servers:
            own = ports_of(self._pid, server.connection_pool.connection_kwargs["port"])
            listed = [(each["addr"], each["cmd"]) for each in server.client_list()]
            found += [command for address, command in listed if int(address.rpartition(":")[2]) in own]
        return sorted(found)

    def asked(self) -> int:
        """How many commands came to the servers so far, those inside Lua included."""
        stats: list[Any] = [server.info("commandstats") for server in self._servers]
        return sum(each["calls"] for found in stats for each in found.values())

    async def most(self, turns: int) -> list[str]:
        """The last commands when most connections were open while turns ran."""
        most: list[str] = []

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, await asyncio.to_thread(self.last_commands), key=len)
                await asyncio.sleep(0.02)

        async with TurnsClient(self.settings) as client:
            watching = asyncio.create_task(watch())
            message = ({"role": "user", "content": "hello"},)
            ids = [
                await client.submitter.submit(TurnRequest(model="scripted", messages=message, session_id=f"s-{number}"))
                for number in range(turns)
            ]
            for turn_id in ids:
                await wait_until(lambda turn_id=turn_id: _ended(client, turn_id))  # type: ignore[misc]
            watching.cancel()
        return most


async def _ended(client: TurnsClient, turn_id: str) -> bool:
    return bool((await client.reader.read_turn(turn_id)).outcome)


@contextmanager
def watched(*, apart: bool) -> Iterator[Watched]:
    """A worker whose store and broker are one server, or two."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        brokers = [EmbeddedBroker(folder / str(each), port=free_port()) for each in range(1 + apart)]
        servers = []
        for each in brokers:
            stack.enter_context(each)
            servers.append(redis.Redis(port=each.port))
        urls = [f"redis://127.0.0.1:{each.port}/0" for each in brokers]
        made = settings_on(brokers[0], folder / "root", store_url=urls[0], broker_url=urls[-1], run_slots=_SLOTS)
        rhythms = {name: getattr(Settings(), name) for name in ("reap_seconds", "announce_seconds")}
        script = '- attempts: [[{wait: 0.1}, {say: "It is done.\\n\\n<!-- STEP: done -->"}]]\n'
        found = Watched(replace(playing(made, script), **rhythms), servers)
        try:
            yield found
        finally:
            end_all([found.worker])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.connections", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it is watched while idle")
    asked = parser.parse_args()
    print("| a worker process | connections | commands/s | the last command of each |\n|---|---|---|---|")
    for apart in (False, True):
        with watched(apart=apart) as found:
            where = "store and broker apart" if apart else "one server"
            time.sleep(10.0)  # what is asked once has been asked
            before, began = found.asked(), time.monotonic()
            time.sleep(asked.seconds)
            rate = (found.asked() - before) / (time.monotonic() - began)
            idle = found.last_commands()
            print(f"| idle, {where} | {len(idle)} | {rate:.2f} | {', '.join(idle)} |", flush=True)
            most = asyncio.run(found.most(_TURNS))
            print(f"| {_SLOTS} turns at once, {where} | {len(most)} | | {', '.join(most)} |", flush=True)


if __name__ == "__main__":
    main()

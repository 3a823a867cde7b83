"""Counts what fail-overs lose with ``everysec`` and ``replicated``: ``python -m tests.fault.failovers [ROUNDS]``.

There are a master, two replicas and three sentinels. In each round the master is frozen or killed, and comes back on
its old data once another has taken over; meanwhile turns are submitted all the time. At the end each acknowledged turn
is looked up. The processes are real; there is no worker, because only the acknowledgement is judged.
"""

import asyncio
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.fault.sentinels import SentinelSetUp
from tests.support import wait_until
from worker.logs import configure_logging
from worker.turns.leases.replica_watch import ReplicaWatch
from worker.turns.loops.polling_loop import PollingLoop

#: How long an old master is there again before the next fault: sentinels make it a replica after about ten seconds.
_BACK_SECONDS = (0.5, 4.0, 12.0)
#: How long a fault lasts where no server may take over, in seconds.
_PATIENCE_SECONDS = 30.0


def guards(copies: int) -> tuple[str, ...]:
    """Return the server options that docs/reliability.md demands, so that an isolated master refuses writes."""
    return ("--min-replicas-to-write", str(copies), "--min-replicas-max-lag", "10")


@dataclass(slots=True)
class Load:
    """Four clients that submit turns within the ``async with`` block, and what became of their turns.

    A turn without an answer is repeated once, as a client does, then given up.
    """

    client: TurnsClient
    failovers: int = 0
    acknowledged: list[str] = field(default_factory=list)
    refused: int = 0
    lost: int = 0
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._submit(number)) for number in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def goes_on(self, more: int = 20) -> None:
        """Wait until ``more`` further turns are acknowledged."""
        begun = len(self.acknowledged)
        await wait_until(lambda: len(self.acknowledged) >= begun + more)

    async def look_up(self, client: TurnsClient) -> None:
        """Count the acknowledged turns that the store does not have."""
        for turn_id in self.acknowledged:
            try:
                await client.reader.read_turn(turn_id)
            except TurnNotFound:
                self.lost += 1

    async def _submit(self, load: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            session = f"{load}-{number}"
            request = TurnRequest(model="scripted", messages=({"role": "user", "content": "hi"},), session_id=session)
            turn_id = self.client.submitter.create_turn_id()
            for _ in range(2):
                try:
                    await self.client.submitter.submit(request, turn_id=turn_id)
                    self.acknowledged.append(turn_id)
                    break
                except StoreUnavailable:
                    self.refused += 1
            await asyncio.sleep(0.05)


async def fail_over(durability: str, rounds: int, directory: Path) -> Load:
    """Fail over ``rounds`` times under load, and count the lost turns among the acknowledged ones."""
    replicated = durability == "replicated"
    options = (*guards(1), "--replica-priority", "0") if replicated else ()
    servers = SentinelSetUp(directory, replicas=2, options=options)
    settings = Settings(root=directory, store_url=servers.url, broker_url=servers.url, durability=durability)
    watch = PollingLoop([ReplicaWatch(settings)])
    watch.start()
    try:
        async with TurnsClient(settings) as client:
            load = Load(client)
            async with load:
                for number in range(rounds):
                    load.failovers += await _fault(servers, number)
                    await asyncio.sleep(_BACK_SECONDS[number % len(_BACK_SECONDS)])
                await asyncio.sleep(15)  # the last old master becomes a replica
        async with TurnsClient(settings) as client:  # asks the sentinels who is the master now
            await load.look_up(client)
    finally:
        watch.close()
        servers.stop()
    return load


async def _fault(servers: SentinelSetUp, number: int) -> bool:
    """Freeze or kill the master, and bring it back after another has taken over; return True if one did."""
    master = await wait_until(servers.master)
    with suppress(AssertionError):  # a master without replicas cannot be failed over: wait for one, as an operator does
        await wait_until(lambda: servers.in_step(master), 30)
    servers.signal(master, signal.SIGSTOP if number % 2 == 0 else signal.SIGKILL)
    over = True
    try:
        await wait_until(lambda: servers.master() not in {0, master}, _PATIENCE_SECONDS)
    except AssertionError:
        over = False
    if number % 2 == 0:
        servers.signal(master, signal.SIGCONT)
    else:
        servers.start(master)
    return over


def main() -> None:
    """Print one line for each durability."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    configure_logging(Settings(log_level="error"))
    for durability in ("everysec", "replicated"):
        with tempfile.TemporaryDirectory() as directory:
            seen = asyncio.run(fail_over(durability, rounds, Path(directory)))
        print(
            f"{durability}: {seen.failovers} fail-overs, {len(seen.acknowledged)} turns acknowledged,"
            f" {seen.lost} of these lost, {seen.refused} refusals"
        )


if __name__ == "__main__":
    main()

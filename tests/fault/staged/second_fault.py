"""A second fault of a replicated store before the first one is over: no acknowledged turn is lost.

The master S1 is frozen, and S2 takes over. S1 wakes, and S2 is killed: S3 takes over. While S1 waits for its first copy
of S3's data, S3 is frozen: S1 must not be promoted, for it lacks what S2 and S3 had acknowledged. Real servers and
sentinels; of the product its client, and the watch that each worker process runs.
"""

import asyncio
import logging
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from tests.fault.failovers import Load, guards
from tests.fault.sentinels import SentinelSetUp
from tests.fault.staged import Seen
from tests.support import wait_until
from worker.logs import configure_logging
from worker.turns.leases.replica_watch import ReplicaWatch
from worker.turns.loops.polling_loop import PollingLoop

#: How long a master is frozen, in seconds: three times as long as it takes Sentinel to replace it.
_FROZEN_SECONDS = 15.0


async def trouble(servers: SentinelSetUp, load: Load) -> bool:
    """Three faults, each before the one before is over; whether the last master was replaced."""
    first = await wait_until(servers.master)
    await wait_until(lambda: servers.in_step(first) == len(servers.ports) - 1)
    await load.goes_on()
    servers.signal(first, signal.SIGSTOP)
    second = await wait_until(lambda: servers.master() not in {0, first} and servers.master())
    await load.goes_on()
    servers.signal(first, signal.SIGCONT)
    servers.signal(second, signal.SIGKILL)
    third = await wait_until(lambda: servers.master() not in {0, first, second} and servers.master())
    with suppress(AssertionError):  # it may have caught up at once
        await wait_until(lambda: servers.behind(first, third), 20)
    servers.signal(third, signal.SIGSTOP)
    replaced = True
    try:
        await wait_until(lambda: servers.master() not in {0, third}, _FROZEN_SECONDS)
    except AssertionError:
        replaced = False
    servers.signal(third, signal.SIGCONT)
    servers.start(second)
    return replaced


async def endure(folder: Path, number: int, copies: int, rounds: int, *, guarded: bool = True) -> tuple[Load, int]:
    """So many rounds of trouble with so many servers; the load, and how often the last master was replaced.

    Without ``guarded`` the servers have Redis' own priority, and nobody changes it.
    """
    options = (*guards(copies), *(("--replica-priority", "0") if guarded else ()))
    servers = SentinelSetUp(folder, replicas=number - 1, options=options)
    root = folder / "root"
    root.mkdir()
    settings = Settings(
        root=root, store_url=servers.url, broker_url=servers.url, durability="replicated", replicas=copies
    )
    watch, replaced = PollingLoop([ReplicaWatch(settings)]), 0
    try:
        if guarded:
            watch.start()
        async with TurnsClient(settings) as client:
            if not guarded:
                client.store._sentinels = None
            load = Load(client)
            async with load:
                for _ in range(rounds):
                    replaced += await trouble(servers, load)
                    await load.goes_on()
        async with TurnsClient(settings) as client:  # asks the sentinels who is the master now
            await load.look_up(client)
    finally:
        watch.close()
        servers.stop()
    return load, replaced


def stage(long: bool) -> Seen:
    """Three servers, and in the long run five."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    configure_logging(Settings(log_level="error"))  # the watch tells of each fault
    tried = wrong = 0
    beside = []
    for number, copies, rounds in ((3, 1, 3), (5, 2, 2)) if long else ((3, 1, 1),):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            load, replaced = asyncio.run(endure(Path(folder), number, copies, rounds))
        tried, wrong = tried + len(load.acknowledged), wrong + load.lost
        found = f"{number} servers: {load.lost} of {len(load.acknowledged)} lost, {load.refused} refused"
        beside.append(f"{found}, {replaced} of {rounds} last masters replaced")
    return Seen(tried, "acknowledged turns", wrong, "; ".join(beside))

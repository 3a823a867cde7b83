"""Runs turns on a cluster under load while masters die, the slot moves and the broker is emptied.

``TURNS=1000 python -m tests.fault.cluster_chaos`` prints a line for ``replicated`` and one for ``everysec``. There are
real workers, three masters with replicas, and one plain broker. Every ``PAUSE`` seconds (20) the master that holds the
keys is killed and comes back as a replica, or is killed while its replica lags (which loses writes with ``everysec``),
or its slot moves to another master, as a whole or key by key. The broker loses all its data twice.
"""

import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnState
from tests.fault.clusters import ClusterSetUp
from tests.installation import Installation, asked, settings_on
from tests.support import json_lines, wait_until
from worker.logs import configure_logging
from worker.processes.embedded_broker import EmbeddedBroker

SCRIPT = """
- attempts:
    - - say: "Ich fange an ... "
      - wait: 1
      - say: "und bin fertig.\\n\\n<!-- STEP: done -->"
"""
#: How long a replica lags before its master is killed, in seconds; less than cluster-node-timeout.
_LAG_SECONDS = 0.7
#: How long one of the things that happen takes about, in seconds.
_OVER_SECONDS = 6.0
#: How long the last turns may take once nothing happens any more, in seconds.
_END_SECONDS = 180.0


@dataclass(slots=True)
class Outcome:
    """The results of a run; ``lost`` has acknowledged turns that are not in the store or never ended."""

    acknowledged: list[str] = field(default_factory=list)
    refusals: int = 0
    kills: int = 0
    moves: int = 0
    emptied: int = 0
    lost: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    strikes: int = 0
    seconds: float = 0.0

    def line(self, durability: str) -> str:
        """Return the line that a run prints."""
        return (
            f"{durability}: {len(self.acknowledged)} turns acknowledged, {len(self.lost)} of these lost, "
            f"{self.refusals} refusals; {self.kills} masters killed, {self.moves} moves of the slot, broker emptied "
            f"{self.emptied} times; outcomes {dict(self.outcomes)}, {self.runs} agent runs, {self.strikes} strikes, "
            f"{self.seconds:.0f} s"
        )


async def chaos(
    turns: int, durability: str, directory: Path, *, pause: float = 20.0, happenings: int = 7, workers: int = 2
) -> Outcome:
    """Submit turns while faults happen, wait until the turns end, and look up each of them."""
    (directory / "cluster").mkdir()
    cluster, found, begun = ClusterSetUp(directory / "cluster"), Outcome(), time.monotonic()
    with EmbeddedBroker(directory / "broker") as broker:
        action_log = directory / "action_log.jsonl"
        script = directory / "script.yaml"
        script.write_text(SCRIPT)
        installation = Installation(
            settings_on(
                broker,
                directory / "root",
                store_url=cluster.url,
                namespace=f"chaos-{secrets.token_hex(4)}",
                durability=durability,
                lease_seconds=10.0,
                models={"scripted": f"scripted:{script}"},
                action_log=str(action_log),
                run_slots=8,
            )
        )
        try:
            for _ in range(workers):
                installation.worker()
            async with TurnsClient(installation.settings) as client:
                await client.reader.await_result(await client.submitter.submit(asked("hi", "before")), timeout=60)
                over = asyncio.Event()
                happening = asyncio.create_task(_happen(cluster, broker, installation.settings, found, over, pause))
                await _submit(client, turns, found, max(happenings * (pause + _OVER_SECONDS), turns * 0.15))
                over.set()
                await happening
                await _look_up(client, found)
            found.runs = sum(line["event"] == "start" for line in json_lines(action_log))
        finally:
            installation.stop()
            cluster.stop()
    found.seconds = time.monotonic() - begun
    return found


async def _submit(client: TurnsClient, turns: int, found: Outcome, seconds: float) -> None:
    """Submit turns at an even pace, repeating each until it is acknowledged, as a client does."""

    async def one(number: int) -> None:
        await asyncio.sleep(seconds * number / turns)
        turn_id = client.submitter.create_turn_id()
        while True:
            try:
                await client.submitter.submit(asked("hi", f"s-{number}"), turn_id=turn_id)
            except StoreUnavailable:
                found.refusals += 1
                await asyncio.sleep(0.3)
            else:
                found.acknowledged.append(turn_id)
                return

    await asyncio.gather(*map(one, range(turns)))


async def _happen(
    cluster: ClusterSetUp, broker: EmbeddedBroker, settings: Settings, found: Outcome, over: asyncio.Event, pause: float
) -> None:
    number = 0
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), pause)
        if over.is_set():
            return
        if number % 3 == 1:
            with redis.Redis.from_url(broker.url) as doorbell:
                doorbell.flushall()
            found.emptied += 1
        await wait_until(cluster.whole)
        if number % 3 == 2:
            await asyncio.to_thread(cluster.move, settings.namespace, key_by_key=number % 2 == 0)
            found.moves += 1
        else:
            await _kill(cluster, settings.namespace, lagging=number % 3 == 1)
            found.kills += 1
        number += 1


async def _kill(cluster: ClusterSetUp, namespace: str, *, lagging: bool) -> None:
    killed = await wait_until(lambda: cluster.owner(namespace))
    if lagging:
        replica = cluster.replica_of(killed)
        cluster.signal(replica, signal.SIGSTOP)
        cluster.client(killed).client_kill_filter(_type="replica")  # or its kernel would receive for it
        await asyncio.sleep(_LAG_SECONDS)
        cluster.signal(killed, signal.SIGKILL)
        cluster.signal(replica, signal.SIGCONT)
    else:
        cluster.signal(killed, signal.SIGKILL)
    await wait_until(lambda: cluster.owner(namespace) not in {0, killed})
    cluster.start(killed)


async def _look_up(client: TurnsClient, found: Outcome) -> None:
    until = time.monotonic() + _END_SECONDS
    for turn_id in found.acknowledged:
        try:
            turn = await client.reader.await_result(turn_id, timeout=max(0.05, until - time.monotonic()))
        except (TurnNotFound, TimeoutError):
            found.lost.append(turn_id)
            continue
        if turn.state is not TurnState.FINISHED:
            found.lost.append(turn_id)
            continue
        found.outcomes[str(turn.outcome)] += 1
        found.strikes += turn.strikes


def main() -> int:
    """Print a line for each durability; return 1 if ``replicated`` lost a turn."""
    configure_logging(Settings(log_level="error"))
    turns, pause = int(os.environ.get("TURNS", "150")), float(os.environ.get("PAUSE", "20"))
    red = False
    for durability in sys.argv[1:] or ("replicated", "everysec"):
        with tempfile.TemporaryDirectory() as directory:
            found = asyncio.run(chaos(turns, durability, Path(directory), pause=pause))
        print(found.line(durability), flush=True)
        red = red or (durability == "replicated" and (bool(found.lost) or len(found.acknowledged) < turns))
    return int(red)


if __name__ == "__main__":
    sys.exit(main())

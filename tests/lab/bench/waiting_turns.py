"""A thousand turns wait in one process: ``python -m tests.lab.bench.waiting_turns [--turns N] [--load N]``.

One worker with one process and default settings; all its connections pass a proxy. Its agents say nothing until they
may. Once all turns are held it looks at them three times: in calm, with a slow link to the store, and beside busy
loops. Then the agents answer, and every turn must pass with the one agent that was started for it.
"""

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import structlog

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest
from tests.chaos.proxy import tell
from tests.fault.matrix import Stage
from tests.lab.bench.sweeper import swept
from tests.lab.bench.turns.costs import cpu_ms, family, pss_of, store_costs
from tests.support import wait_for, wait_until
from worker.processes.process_tuning import raise_open_file_limit

SCRIPT = """
- attempts:
    - - wait_for: {meet}/go
      - say: "fertig.\\n\\n<!-- STEP: done -->"
"""
#: Goals of issue 14: memory of the process and its guard in MB, round trips a second, fences.
MOST_MB, MOST_ROUND_TRIPS, MOST_FENCED = 90, 20, 0
_PATIENCE = 300.0
_ASKED_AT_ONCE = 20
#: Ends by itself, whatever becomes of us.
_BUSY = "import sys, time\nends = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < ends: pass"
_ROLES = {"worker.celery_worker": "engine", "worker.runners.sandbox.guard": "guard"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen while all turns waited.

    Attributes:
        what: calm, a slow link, or a busy machine. held: turns whose agent runs. memory: MB (PSS) by role.
        round_trips, commands, cpu_ms: a second; CPU is the worker's. lease_round: the longest round of leases, seconds.
        fenced: leases that were lost. load: of the machine in the end.
    """

    what: str
    held: int
    memory: dict[str, float]
    round_trips: float
    commands: float
    cpu_ms: float
    lease_round: float
    fenced: int
    load: float


class Waiting:
    """The worker with its turns."""

    def __init__(self, folder: Path, turns: int) -> None:
        default, link = Settings(), f"unix://{folder}/link"
        self.control = str(folder / "control")
        self.turns = turns
        self.stage = Stage(
            folder,
            SCRIPT,
            models={"scripted": f"inline:{folder}/meet/script.yaml"},
            store_url=link,
            broker_url=link,
            run_slots=turns,
            failpoint="",
            lease_seconds=default.lease_seconds,
            reap_seconds=default.reap_seconds,
            announce_seconds=default.announce_seconds,
        )
        self._links = {"store": [f"unix:{folder}/link", f"unix:{self.stage.broker.socket}"]}

    @asynccontextmanager
    async def started(self) -> AsyncIterator[list[str]]:
        """Start everything, submit the turns and wait until all are held; yields their ids."""
        raise_open_file_limit()  # the proxy takes two a connection, and inherits the limit
        command = [sys.executable, "-P", "-m", "tests.chaos.proxy", self.control, json.dumps(self._links)]
        proxy = subprocess.Popen(command)
        try:
            wait_for(lambda: Path(self.control).exists())
            self.stage.start(workers=1)
            async with TurnsClient(self.stage.settings) as client:
                messages = ({"role": "user", "content": "hello"},)
                requests = [
                    TurnRequest(model="scripted", messages=messages, session_id=f"s-{number}")
                    for number in range(self.turns)
                ]
                ids = [await client.submitter.submit(request) for request in requests]
                await wait_until(lambda: self.held() == self.turns, _PATIENCE, tick=0.5)
                yield ids
        finally:
            self.stage.stop()
            proxy.kill()
            proxy.wait()

    def agents(self) -> Counter[str]:
        """How many agents began and ended so far."""
        lines = self.stage.action_log.read_text().splitlines() if self.stage.action_log.exists() else []
        return Counter(json.loads(line)["event"] for line in lines)

    def held(self) -> int:
        """Turns whose agent runs."""
        seen = self.agents()
        return seen["start"] - seen["end"]

    def logged(self, event: str) -> int:
        """How often the worker has logged this."""
        return self.stage.workers[0].log_file.read_text().count(f'"event": "{event}"')

    async def look(self, what: str, seconds: float) -> Look:
        """Look for so many seconds."""
        worker = self.stage.workers[0]
        with redis.Redis.from_url(self.stage.broker.url) as store:
            fenced, cpu, before, began = self.logged("lease.fenced"), cpu_ms(worker.pid), store_costs(store), _now()
            await asyncio.sleep(seconds)
            after, took = store_costs(store), _now() - began
            told: dict[bytes, bytes] = store.hgetall(self.stage.keys.workers)  # type: ignore[assignment]
        return Look(
            what=what,
            held=self.held(),
            memory=_memory(worker.pid),
            # One of them is ours.
            round_trips=(after["round_trips"] - before["round_trips"] - 1) / took,
            commands=(after["commands"] - before["commands"] - 1) / took,
            cpu_ms=(cpu_ms(worker.pid) - cpu) / took,
            lease_round=max(json.loads(facts)["lease_round"] for facts in told.values()),
            fenced=self.logged("lease.fenced") - fenced,
            load=os.getloadavg()[0],
        )

    async def end(self, ids: list[str]) -> list[Turn]:
        """Let the agents answer; returns the finished turns. A few at a time are waited for: all will have ended."""
        (self.stage.meet / "go").touch()
        ended: list[Turn] = []
        async with TurnsClient(self.stage.settings) as client:
            for some in range(0, len(ids), _ASKED_AT_ONCE):
                asked = (
                    client.reader.await_result(turn_id, timeout=_PATIENCE)
                    for turn_id in ids[some : some + _ASKED_AT_ONCE]
                )
                ended += await asyncio.gather(*asked)
        return ended


def _now() -> float:
    return time.monotonic()


def _memory(pid: int) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for one in family(pid):
        words = Path(f"/proc/{one}/cmdline").read_bytes().decode().split("\0")
        role = next((role for word, role in _ROLES.items() if word in words), "supervisor" if one == pid else "other")
        found[role] += pss_of(one)
    return dict(found)


@contextmanager
def busy(loops: int, seconds: float) -> Iterator[None]:
    """So many processes that do nothing but use a processor; they end after ``seconds`` at the latest."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(seconds)]
    started = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


async def measure(folder: Path, turns: int, round_trip: float, load: int, seconds: float) -> dict[str, Any]:
    """Everything that was seen: the looks, and how the turns ended."""
    waiting = Waiting(folder, turns)
    looks: list[Look] = []
    async with waiting.started() as ids:
        looks.append(await waiting.look("calm", seconds))
        if round_trip:
            await tell(waiting.control, "store", "delay", round_trip / 2)
            looks.append(await waiting.look(f"{round_trip * 1000:g} ms round trip", seconds))
            await tell(waiting.control, "store", "heal")
        if load:
            with busy(load, seconds + 10):
                looks.append(await waiting.look(f"{load} busy loops", seconds))
        ended = await waiting.end(ids)
        slow, starts = waiting.logged("lease.round_slow"), waiting.agents()["start"]
    outcomes = Counter(str(turn.outcome) for turn in ended)
    return {"turns": turns, "looks": looks, "starts": starts, "slow_rounds": slow, "outcomes": dict(outcomes)}


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['turns']:,} turns wait in one process; goals: {MOST_MB} MB, {MOST_ROUND_TRIPS} round trips/s, no fence"
    )
    print()
    names: tuple[str, ...] = ("held", "engine + guard, MB", "supervisor, MB", "round trips/s", "commands/s", "CPU ms/s")
    names = (*names, "longest round of leases, s", "fenced", "load")
    print(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for look in found["looks"]:
        ours = sum(mb for role, mb in look.memory.items() if role != "supervisor")
        cells = [
            look.what,
            f"{look.held:,}",
            f"{ours:.1f}",
            f"{look.memory['supervisor']:.1f}",
            f"{look.round_trips:.1f}",
        ]
        cells += [f"{look.commands:.0f}", f"{look.cpu_ms:.0f}", f"{look.lease_round:.2f}", str(look.fenced)]
        print(f"| {' | '.join([*cells, f'{look.load:.1f}'])} |")
    print(f"\nthen: {found['starts']:,} agents were started for {found['turns']:,} turns; {found['outcomes']}")


def main() -> None:
    """Measure and print; ends with 1 when a lease was lost, or an agent was started twice."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.waiting_turns", description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--round-trip", type=float, default=0.1, help="of the slow link, in seconds; 0: no such look")
    parser.add_argument("--load", type=int, default=30, help="busy loops; 0: no such look")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each look")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="waiting-", ignore_cleanup_errors=True) as name, swept(Path(name)):
        found = asyncio.run(measure(Path(name), options.turns, options.round_trip, options.load, options.seconds))
    show(found)
    if found["starts"] > found["turns"] or any(look.fenced for look in found["looks"]):
        sys.exit(1)


if __name__ == "__main__":
    main()

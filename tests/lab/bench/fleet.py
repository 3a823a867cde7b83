"""Many workers and a long line on one store: ``python -m tests.lab.bench.fleet [--workers 1000] [--turns 100000]``.

Server, Lua, line, leases, reapers and heartbeats are the real ones. The workers are pretended: they live in one
process, take one turn each, and run no agent; how long they may need for it is not measured. What the table says of a
second is what that server can do, or has to; the figures of a worker do not depend on ours.
"""

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import logging
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
import structlog

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.settings import Settings
from api_client.contract.tasks import PREFERRED_QUEUE, RUN_QUEUE, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnRequest
from api_client.store.connection import SingleConnection
from api_client.store.store import heed_cancellation
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.ledger import Ledger
from api_client.turns.record.transition import Answer, Transition, attempt_facts
from tests.lab.bench.turns.costs import store_costs
from worker.agents.model_availability import ModelAvailability
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.process_tuning import raise_open_file_limit
from worker.turns.leases.machine_health import Host
from worker.turns.leases.reaper import Reaper
from worker.turns.leases.worker_heartbeat import WorkerActivity, WorkerHeartbeat
from worker.turns.loops.polling_loop import Watcher

_OWNERS, _AT_ONCE, _LOOK_SECONDS, _TO_TAKE, _PATIENCE = 1_000, 200, 20.0, 60.0, 300.0
_MESSAGE = ({"role": "user", "content": "Which cache do we take, and why? " * 8},)
_RAN = Transition(
    attempt=1, next=ChainTask(VALIDATE, 1), facts=attempt_facts(text="An answer.", prompt="p"), run_ended=True
)
_PASSED = Transition(
    attempt=1,
    outcome=Outcome.PASSED,
    answer=Answer(response="An answer.", step="done", step_source="marker"),
    facts=attempt_facts(answer="An answer.", decision="accept"),
    validated=True,
)
#: A turn that may be taken: its link, its id and its session's.
Due = tuple[ChainTask, str, str]


class Fleet:
    """The pretended workers, and the turns that messages name to them."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self.due: asyncio.Queue[Due] = asyncio.Queue()
        self.workers = [Pretended(self, index) for index in range(number)]
        #: When a reaper announced a turn again.
        self.announced: dict[str, float] = {}
        self.looks = 0

    async def listen(self) -> None:
        """Take the broker's messages, as Celery does."""
        names = [f"{self.settings.namespace}:celery:{queue}" for queue in (PREFERRED_QUEUE, RUN_QUEUE)]
        async with redis.asyncio.Redis.from_url(self.settings.broker_url, socket_timeout=None) as broker:
            while True:
                found = await broker.execute_command("BLMPOP", 0, len(names), *names, "RIGHT", "COUNT", 100)  # type: ignore[no-untyped-call]
                for raw in found[1]:
                    self.due.put_nowait(due_by(raw))

    def announce(self, link: ChainTask, turn_id: str, session_id: str) -> None:
        """A reaper's message. Called in its thread."""
        self.announced[turn_id] = time.monotonic()
        self._loop.call_soon_threadsafe(self.due.put_nowait, (link, turn_id, session_id))

    async def start(self) -> None:
        """Let all workers begin, spread over a second."""
        self._loop = asyncio.get_running_loop()
        self._listening = asyncio.create_task(self.listen())
        for worker in self.workers:
            worker.start()
        await asyncio.sleep(10.0)


class Pretended:
    """A worker's reaper, heartbeat and leases."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        name, settings = f"pretended-{index}@host-{index}", fleet.settings
        self._fleet, self._settings = fleet, settings
        self.ledger = Ledger(settings, name)
        self.held: LeaseClaim | None = None
        host, ability = Host(settings.root, probe=lambda _: ""), ModelAvailability(settings)
        ability.check_models()
        work = WorkerActivity(
            name=name,
            queues=lambda: (RUN_QUEUE,),
            taken=lambda: 0,
            slots=lambda _: 1,
            free=lambda _: 0 if self.held else 1,
            lease_round=lambda: 0.0,
            took_at=lambda: 0.0,
            obey=lambda _: False,
            loop_blocked=lambda: 0.0,
        )
        looking = SingleConnection(settings)
        reaper = Reaper(settings, name, fleet.announce, connection=looking)
        self._watchers: list[Watcher] = [
            reaper,
            WorkerHeartbeat(settings, work, host, ability, lambda _: None, None, None, looking),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look, each watcher in its rhythm."""
        self._tasks = [asyncio.create_task(self._watch(each)) for each in self._watchers]

    def kill(self) -> None:
        """It does nothing more, and gives nothing back."""
        for task in self._tasks:
            task.cancel()

    async def _watch(self, watcher: Watcher) -> None:
        await asyncio.sleep(random.uniform(0.0, watcher.seconds))
        while True:
            with contextlib.suppress(redis.RedisError):
                await watcher.poll()
            heed_cancellation()
            await asyncio.sleep(watcher.seconds)

    async def take(self) -> LeaseClaim:
        """Claim the next turn that is due."""
        while True:
            link, turn_id, session_id = await self._fleet.due.get()
            claim = await self.ledger.claim_turn(turn_id, session_id, link)
            if isinstance(claim, LeaseClaim):
                return claim

    async def hold_one(self) -> None:
        """Claim the next turn that is due, and keep it until the worker is killed."""
        claim = self.held = await self.take()
        self._tasks.append(asyncio.create_task(self._beat(claim)))

    async def _beat(self, claim: LeaseClaim) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 4)
            with contextlib.suppress(redis.RedisError):
                await self.ledger.renew_lease(claim)

    async def finish(self, claim: LeaseClaim) -> None:
        """Run, judge and end a turn; let the next of the line go."""
        judging = await self.ledger.commit_transition(claim, _RAN, keep=True)
        assert isinstance(judging, LeaseClaim)
        await self.ledger.commit_transition(judging, _PASSED)
        for due in (await self.ledger.release_turns()).left:
            self._fleet.due.put_nowait(due)


def due_by(raw: bytes) -> Due:
    """The turn that a message of Celery's first task names."""
    message = json.loads(raw)
    _, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    link = ChainTask.parse(f"{message['headers']['task']}/{kwargs['attempt']}")
    return link, str(kwargs["turn_id"]), str(kwargs["session_id"])


def say(name: str, figure: str) -> None:
    """A line of the table, as soon as it is known."""
    print(f"| {name} | {figure} |", flush=True)


class Server:
    """The store's own figures."""

    def __init__(self, url: str) -> None:
        self._store = redis.Redis.from_url(url)

    def look(self) -> tuple[float, dict[str, float]]:
        """Now, and what it has spent, with its connections."""
        clients: Any = self._store.info("clients")
        return time.monotonic(), store_costs(self._store) | {"connections": clients["connected_clients"]}

    async def during(self, what: str, workers: int, seconds: float) -> dict[str, float]:
        """Say what it has to do while so many seconds pass; what it has spent then."""
        began, before = self.look()
        await asyncio.sleep(seconds)
        ended, after = self.look()
        rates = {name: (after[name] - before[name]) / (ended - began) for name in before}
        each = f"({rates['round_trips'] / workers:.2f} a worker)"
        say(f"{what}: round trips/s", f"{rates['round_trips']:,.0f} {each}")
        say(f"{what}: commands/s, those in Lua too", f"{rates['commands']:,.0f}")
        say(f"{what}: the store's CPU", f"{rates['store_cpu_ms'] / 1e3:.1%} of a core")
        return after


async def submit(settings: Settings, turns: int) -> float:
    """Submit the turns of many owners; turns a second."""
    numbers, began = itertools.count(), time.monotonic()
    async with TurnsClient(settings) as client:

        async def some() -> None:
            while (number := next(numbers)) < turns:
                request = TurnRequest(
                    model="scripted", messages=_MESSAGE, session_id=f"s-{number}", owner=f"owner-{number % _OWNERS}"
                )
                while True:
                    with contextlib.suppress(StoreUnavailable):  # the machine is busy
                        await client.submitter.submit(request)
                        break

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
    return turns / (time.monotonic() - began)


async def recovered(fleet: Fleet, server: Server) -> list[float]:
    """Kill every other worker; the seconds until each of its turns was announced again. Says who was busy meanwhile."""
    dead = fleet.workers[::2]
    lost = [worker.held.turn.turn_id for worker in dead if worker.held]
    fleet.announced.clear()
    killed, before, own = *server.look(), time.process_time()
    for worker in dead:
        worker.kill()
    async with asyncio.timeout(_PATIENCE):
        while any(turn_id not in fleet.announced for turn_id in lost):
            await asyncio.sleep(0.1)
    ended, after = server.look()
    took, store = ended - killed, (after["store_cpu_ms"] - before["store_cpu_ms"]) / 1e3
    ours = f"{(time.process_time() - own) / took:.0%}"
    say("meanwhile, of a core: the store; the process that pretends the workers", f"{store / took:.0%}; {ours}")
    return sorted(fleet.announced[turn_id] - killed for turn_id in lost)


async def drained(fleet: Fleet, seconds: float) -> float:
    """Let the living workers finish turn after turn; turns a second."""
    done, until = Counter[str](), time.monotonic() + seconds

    async def work(worker: Pretended) -> None:
        while time.monotonic() < until:
            await worker.finish(await worker.take())
            done["turns"] += 1

    tasks = [asyncio.create_task(work(worker)) for worker in fleet.workers[1::2][:_AT_ONCE]]
    await asyncio.wait(tasks, timeout=seconds + 5)
    for task in tasks:
        task.cancel()
    return done["turns"] / seconds


async def measure(settings: Settings, workers: int, turns: int, seconds: float) -> None:
    """Look at the idle fleet, fill the line, let each worker take a turn, kill half of them, let the others finish."""
    server, fleet = Server(settings.store_url), Fleet(settings, workers)
    await fleet.start()
    idle = await server.during("idle", workers, seconds)
    say("connections of reaper and heartbeat", f"{idle['connections'] / workers:.1f} a worker")
    rate = await submit(settings, turns)
    say("submitted", f"{turns:,} turns of {_OWNERS:,} owners, {rate:,.0f} a second")
    _, full = server.look()
    each = (full["memory_bytes"] - idle["memory_bytes"]) / 1e3 / turns
    say("memory of the store", f"{full['memory_bytes'] / 1e6:,.0f} MB, {each:.1f} kB a turn")
    began = time.monotonic()
    await asyncio.wait([asyncio.create_task(worker.hold_one()) for worker in fleet.workers], timeout=_TO_TAKE)
    held = sum(worker.held is not None for worker in fleet.workers)
    say("at work after", f"{held:,} workers, {time.monotonic() - began:.1f} s")
    await server.during("at work", workers, seconds)
    times = await recovered(fleet, server)
    what = f"{len(times)} workers killed: their turns announced again after, p50 / max"
    lease = f"lease {settings.lease_seconds:g} s"
    say(what, f"{statistics.median(times):.1f} / {times[-1]:.1f} s ({lease})")
    say("turns finished by the others", f"{await drained(fleet, seconds):,.0f} a second")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.fleet", description=__doc__)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=_LOOK_SECONDS, help="how long each look takes")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    raise_open_file_limit()
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        settings = Settings(root=Path(folder), broker_url=broker.url, store_url=broker.url)
        settings = replace(settings, max_unfinished=0)
        print(f"{asked.workers:,} pretended workers, {asked.turns:,} turns, default settings\n\n| | |\n|---|---|")
        asyncio.run(measure(settings, asked.workers, asked.turns, asked.seconds))


if __name__ == "__main__":
    main()

"""The nemesis: carries out the planned faults on real processes, connections and messages, and heals what lasts."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from tests.chaos import proxy
from tests.chaos.history import Recorder
from tests.chaos.stage import RELAYS, WORKERS, Stage
from tests.chaos.targets import Target, below, names, target
from tests.chaos.traffic.messages import Messages, Missed
from tests.chaos.traffic.plan import PlannedFault
from tests.supervised import wait_ready
from worker.processes.supervisor import Supervisor

#: The links a fault of the network may hit.
_INNER = (*WORKERS, *RELAYS)
_DELAY_SECONDS, _BYTES_A_SECOND = 0.25, 20_000.0


class Nemesis:
    """Breaks things as planned. Each fault is one line at its begin, with what it hit, and one at its end."""

    def __init__(self, stage: Stage, supervisor: Supervisor, recorder: Recorder) -> None:
        self._stage = stage
        self._supervisor = supervisor
        self._recorder = recorder
        self._frozen: set[Target] = set()
        self._lasting: set[asyncio.Task[None]] = set()
        self._messages = Messages(stage.settings)

    async def play(self, faults: Iterable[PlannedFault], begun: float) -> None:
        """Carry out every fault at its time; ``begun`` is the load's start by ``time.monotonic()``."""
        for number, fault in enumerate(faults):
            await asyncio.sleep(max(0.0, begun + fault.at - time.monotonic()))
            task = asyncio.create_task(self._carry_out(number, fault))
            self._lasting.add(task)
            task.add_done_callback(self._lasting.discard)

    async def heal(self) -> None:
        """End every fault that lasts, and wait until all processes are there again."""
        for task in list(self._lasting):
            task.cancel()
        await asyncio.gather(*self._lasting, return_exceptions=True)
        self._stage.hold.unlink(missing_ok=True)
        for frozen in list(self._frozen):
            self._thaw([frozen])
        await self._tell("*", "heal")
        for program in self._stage.programs:
            await asyncio.to_thread(wait_ready, self._supervisor, program.name, seconds=180.0)
        await self._messages.close()

    async def _carry_out(self, number: int, fault: PlannedFault) -> None:
        name = f"fault-{number}"
        facts: dict[str, Any] = {"kind": fault.kind, "seconds": fault.seconds}
        verb, _, object_ = fault.kind.partition(" ")
        try:
            if verb == "kill" and object_ == "broker":
                await self._broker_away(name, fault)
            elif verb in {"kill", "freeze"}:
                await self._signal(name, fault, verb, object_)
            elif verb in _NETWORK or object_ == "client":
                await self._disturb(name, fault)
            else:
                await self._messages.carry_out(fault)
                self._recorder.write("fault", "invoke", name=name, **facts)
        except (Missed, OSError, RedisError, OperationalError) as error:
            self._recorder.write("fault", "fail", name=name, **facts, why=repr(error)[:120])
            return
        self._recorder.write("fault", "ok", name=name, **facts)

    async def _signal(self, name: str, fault: PlannedFault, verb: str, object_: str) -> None:
        victims = self._victims(object_, fault.pick)
        facts: dict[str, Any] = {
            "kind": fault.kind,
            "seconds": fault.seconds,
            "pids": [victim.pid for victim in victims],
        }
        if object_ in {"worker", "all workers"}:  # the kernel kills the rest of an installation with its head
            hit = [t for v in victims for t in below(v.pid)]
            facts["below"] = [t.pid for t in hit]
            facts["workers"] = names(hit)
        else:
            facts["workers"] = names(victims)
        self._recorder.write("fault", "invoke", name=name, **facts)
        number = signal.SIGKILL if verb == "kill" else signal.SIGSTOP
        if verb == "freeze":
            self._frozen.update(victims)
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                if victim.alive():
                    os.kill(victim.pid, number)
        if verb == "freeze":
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._thaw(victims)

    def _thaw(self, victims: list[Target]) -> None:
        for victim in victims:
            self._frozen.discard(victim)
            with contextlib.suppress(ProcessLookupError):
                if victim.alive():
                    os.kill(victim.pid, signal.SIGCONT)

    def _victims(self, object_: str, pick: float) -> list[Target]:
        """The processes a fault hits.

        Raises:
            Missed: there is none at the moment.
        """
        if object_ in {"relay", "broker"}:
            names = RELAYS if object_ == "relay" else ("broker",)
            there_are = {program.name for program in self._stage.programs}
            found = [self._program(name) for name in names if name in there_are]
        elif object_ in {"worker", "all workers"}:
            found = [self._program(name) for name in WORKERS]
        else:
            everything = [t for name in WORKERS for t in below(self._supervisor.pid(name))]
            found = [t for t in everything if t.role == object_]
        there = [victim for victim in found if victim and victim not in self._frozen]
        if not there:
            raise Missed(f"no {object_} runs")
        if object_ == "all workers":
            return there
        if object_ in {"engine", "worker"}:
            there.sort(key=lambda victim: -sum(t.role == "agent" for t in below(victim.pid)))
        return [there[int(pick * len(there))]]

    def _program(self, name: str) -> Target | None:
        pid = self._supervisor.pid(name)
        return target(pid, name) if pid else None

    async def _broker_away(self, name: str, fault: PlannedFault) -> None:
        victim = self._victims("broker", 0.0)[0]
        self._stage.hold.touch()
        facts = {"kind": fault.kind, "seconds": fault.seconds, "pids": [victim.pid]}
        self._recorder.write("fault", "invoke", name=name, **facts)
        try:
            os.kill(victim.pid, signal.SIGKILL)
            await asyncio.sleep(fault.seconds)
        finally:
            self._stage.hold.unlink(missing_ok=True)
        await asyncio.to_thread(wait_ready, self._supervisor, "broker", after=victim.pid, seconds=180.0)

    async def _disturb(self, name: str, fault: PlannedFault) -> None:
        verb, _, object_ = fault.kind.partition(" ")
        links = [f"client-{relay}" for relay in RELAYS] if object_ == "client" else list(_INNER)
        link = links[int(fault.pick * len(links))]
        facts = {"kind": fault.kind, "seconds": fault.seconds, "link": link}
        self._recorder.write("fault", "invoke", name=name, **facts)
        await self._tell(link, verb, _NETWORK[verb])
        if verb != "cut":
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                await self._tell(link, "heal")

    async def _tell(self, link: str, do: str, by: float = 0.0) -> None:
        await proxy.tell(self._stage.control, link, do, by)


#: Faults of a link, and by how much.
_NETWORK = {"cut": 0.0, "stall": 0.0, "deafen": 0.0, "delay": _DELAY_SECONDS, "throttle": _BYTES_A_SECOND}

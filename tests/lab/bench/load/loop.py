"""A closed loop: so many turns in flight, for so long; stamps what the listener hears."""

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from tests.lab.bench.load import work
from tests.lab.bench.load.listener import Listener
from tests.lab.bench.load.system import System

#: A turn that takes longer is lost, and the run with it.
_TURN_SECONDS = 60.0


@dataclass
class _Turn:
    kind: str
    submitted: float
    end: asyncio.Future[dict[str, Any]]
    began: float = 0.0
    characters: int = 0
    messages: int = 0


@dataclass
class Loop:
    """Drives one system. ``follows``: the system's own way of following a turn is used beside the listener."""

    system: System
    follows: bool = False
    _turns: dict[str, _Turn] = field(default_factory=dict)

    async def open(self, host: str, port: int) -> None:
        self._prefix = len(self.system.pattern.partition("*")[0])
        self._suffix = len(self.system.pattern.partition("*")[2])
        self._listener = await Listener.listen(host, port, self.system.pattern, self._heard)

    def _heard(self, channel: bytes, payload: bytes) -> None:
        name = channel.decode()
        turn = self._turns.get(name[self._prefix : len(name) - self._suffix])
        if turn is None or turn.end.done():
            return
        for line in payload.split(b"\n"):  # our bell carries all events of a command, one a line
            self._event(turn, json.loads(line))

    def _event(self, turn: _Turn, event: dict[str, Any]) -> None:
        if not turn.began and self.system.began(event):
            turn.began = time.perf_counter()
        if characters := self.system.said(event):
            turn.characters += characters
            turn.messages += 1
        if self.system.ended(event):
            turn.end.set_result(event)

    async def turns(self, kind: str, in_flight: int, seconds: float, most: int, read_back: int = 3) -> dict[str, Any]:
        """Keep ``in_flight`` turns going until ``seconds`` are over or ``most`` were submitted; then wait for the rest.

        ``read_back`` of them are then read from the store.

        Raises:
            RuntimeError: a turn ended otherwise than it must, or is not in the store. TimeoutError: one was lost.
        """
        took: list[float] = []
        first: list[float] = []
        ends: list[float] = []
        done: list[str] = []
        pieces = messages = submitted = 0
        stopped = float("inf")
        cpu, started = time.process_time(), time.perf_counter()

        async def drive() -> None:
            nonlocal pieces, messages, submitted, stopped
            while submitted < most and _goes_on(time.perf_counter() - started, seconds, len(ends) > 2 * in_flight):
                submitted += 1
                name, turn = await self._one(kind)
                ends.append(time.perf_counter() - started)
                took.append(started + ends[-1] - turn.submitted)
                first.append(turn.began - turn.submitted)
                done.append(name)
                pieces += turn.characters // work.PIECE_CHARACTERS
                messages += turn.messages
            stopped = min(stopped, time.perf_counter() - started)

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(drive())
        total = time.perf_counter() - started
        cpu = time.process_time() - cpu
        for name in random.sample(done, min(read_back, len(done))):
            if not await self.system.stored(name, kind):
                raise RuntimeError(f"the store does not hold turn {name} as it must")
        return {
            "turns": len(done),
            "turns_per_s": pace(ends, in_flight, stopped),
            "p50_ms": _rank(took, 0.5),
            "p99_ms": _rank(took, 0.99),
            "first_event_ms": _rank(first, 0.5),
            "client_cpu_ms": cpu * 1000,
            "pieces_per_s": pieces / total,
            "messages": messages,
        }

    async def _one(self, kind: str) -> tuple[str, _Turn]:
        name = self.system.new_id()
        turn = _Turn(kind, time.perf_counter(), asyncio.get_running_loop().create_future())
        self._turns[name] = turn
        async with asyncio.timeout(_TURN_SECONDS):
            await self.system.submit(name, kind)
            if self.follows:
                await self.system.follow(name)
            last = await turn.end
        del self._turns[name]
        if not self.system.right(kind, last):
            raise RuntimeError(f"turn {name} ({kind}) did not end as it must: {last}")
        if kind == work.STREAM and turn.characters < work.PIECES * work.PIECE_CHARACTERS:
            raise RuntimeError(f"turn {name}: heard {turn.characters} characters of its answer")
        return name, turn

    async def hold(self, count: int, seconds: float) -> dict[str, Any]:
        """Submit turns whose agents sleep; returns how many of them had begun within ``seconds``."""
        started = time.perf_counter()
        turns = []
        for _ in range(count):
            name = self.system.new_id()
            turn = _Turn(work.HELD, started, asyncio.get_running_loop().create_future())
            self._turns[name] = turn
            turns.append(turn)
            await self.system.submit(name, work.HELD)
        while (held := sum(turn.began > 0 for turn in turns)) < count and time.perf_counter() - started < seconds:
            await asyncio.sleep(0.05)
        return {"held": held, "seconds": time.perf_counter() - started}

    async def serve(self, read: asyncio.StreamReader, answers: TextIO) -> None:
        """Carry out orders, one JSON object a line, and answer each with one; ends at the end of input."""
        while line := await read.readline():
            order = json.loads(line)
            answer = await getattr(self, order.pop("do"))(**order)
            print(json.dumps(answer), file=answers, flush=True)


def _goes_on(passed: float, seconds: float, enough: bool) -> bool:
    """Whether another turn is submitted: until the time is over; a slow row gets four times as long for ``enough``."""
    return passed < seconds or (not enough and passed < 4 * seconds)


def pace(ends: list[float], in_flight: int, stopped: float) -> float:
    """Turns a second, from the end of the first ``in_flight`` until the submits ended.

    Before that the system still fills, by which a slow one would lose more than a fast one.

    Args:
        ends: when turns ended, in order; stopped: when the submits ended. Seconds since the first submit.
    """
    counted = [end for end in ends if end <= stopped]
    filled = counted[in_flight - 1] if len(counted) > in_flight else 0.0
    return (len(counted) - (in_flight if filled else 0)) / (stopped - filled)


def _rank(values: list[float], part: float) -> float:
    """The value below or at which this part of the values lies (nearest rank), in ms."""
    return sorted(values)[max(0, round(part * len(values)) - 1)] * 1000


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def run(system: System, host: str, port: int, *, follows: bool = False) -> None:
    """A client process: subscribe, say so, then carry out orders. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = Loop(system, follows)
    await loop.open(host, port)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    await loop.serve(await _standard_input(), answers)

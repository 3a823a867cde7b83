"""``python -m tests.lab.bench.streams``: what a stream through the relay takes, in time and in memory.

A real relay and a real broker. The turns are held by the engine's own ledger in this process, and what their agents say
goes through its own writer; no agent runs. The readers are a process of their own, as Open WebUI would be: they ask by
``POST /v1/chat/completions`` and read what a page reads, draft included.
"""

import asyncio
import json
import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, ChainTask
from api_client.turns.record import ledger as product
from api_client.turns.record.claim import LeaseClaim
from tests.installation import RelayProcess
from tests.on_loop import Ledger
from tests.unit.web.openwebui import Reader
from worker.logs import configure_logging
from worker.processes.embedded_broker import EmbeddedBroker
from worker.runners.base import AgentEvent
from worker.turns.event_writer import EventWriter
from worker.turns.loops.loop import Loop

#: (a) how many streams at once, how many deltas each, and how many a second of each.
QUICK, QUICK_DELTAS, QUICK_RATE = 50, 200, 10
#: (b) how many streams on which nothing happens.
IDLE = 1_000
#: (c) how many streams at once, and how many deltas of each, as fast as they can be written.
MANY, MANY_DELTAS = 500, 200
_WRITERS, _OPENING = 4, 20
_PATIENCE_SECONDS = 300
_LAST = "."


@dataclass
class Stream:
    """What one reader got, and when: ``(seconds of the monotonic clock, bytes)``."""

    number: int
    turn_id: str = ""
    got: list[tuple[float, bytes]] = field(default_factory=list)

    def frames(self) -> Iterator[tuple[float, object]]:
        """Each frame's payload, with the time its last byte came."""
        rest = b""
        for at, more in self.got:
            *frames, rest = (rest + more).split(b"\n\n")
            for frame in frames:
                if frame.startswith(b"data: {"):
                    yield at, json.loads(frame.removeprefix(b"data: "))


def main() -> None:
    """Measure all three, each with a relay and a store of its own."""
    for measure in (latency, memory, order):
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as relay:
            load = os.getloadavg()[0]
            print(f"{measure(relay)} [load {load:.1f} before, {os.cpu_count()} cores]", flush=True)


@contextmanager
def serving(folder: Path) -> Iterator[RelayProcess]:
    """A relay before a broker."""
    with EmbeddedBroker(folder / "broker") as broker:
        root = folder / "root"
        root.mkdir()
        settings = Settings(
            root=root,
            broker_url=broker.url,
            store_url=broker.url,
            models={"bench": "scripted"},
            lease_seconds=600.0,
            log_level="error",
        )
        configure_logging(settings)
        relay = RelayProcess(settings)
        try:
            relay.start()
            yield relay
        finally:
            relay.kill()


def latency(relay: RelayProcess) -> str:
    """From the moment the runner says a delta until its bytes are at the reader."""
    with reading(relay, QUICK) as readers, looping() as loop:
        log = product.Ledger(relay.settings, "bench")
        writers = loop.run_and_wait(writers_of(log, [claim for _, claim in claims(relay.settings, readers.turn_ids)]))
        late, began = [], time.monotonic()
        for number in range(QUICK_DELTAS):
            for place, writer in enumerate(writers):
                due = began + (number + place / QUICK) / QUICK_RATE
                time.sleep(max(0.0, due - time.monotonic()))
                late.append(1000 * (time.monotonic() - due))
                loop.call_later(
                    0, partial(writer.queue_event, AgentEvent(kind="output", text=f" {time.monotonic():.6f}"))
                )
        for writer in writers:
            loop.call_later(0, partial(writer.queue_event, AgentEvent(kind="output", text=_LAST)))
        streams = readers.streams()
    took = [1000 * (at - said) for stream in streams for at, said in heard(stream)]
    return (
        f"{QUICK} streams, {QUICK_RATE} deltas/s each, {len(took):,} deltas: median {statistics.median(took):.1f} ms, "
        f"p99 {p99(took):.1f} ms, slowest {max(took):.1f} ms; the bench itself woke up late by p99 {p99(late):.1f} ms"
    )


@contextmanager
def looping() -> Iterator[Loop]:
    """An event loop as a worker has it."""
    loop = Loop()
    loop.start()
    try:
        yield loop
    finally:
        loop.close()


async def writers_of(log: product.Ledger, held: list[LeaseClaim]) -> list[EventWriter]:
    """A writer for each turn, in the loop that runs this."""
    return [EventWriter(log, claim) for claim in held]


def p99(figures: list[float]) -> float:
    return sorted(figures)[len(figures) * 99 // 100]


def memory(relay: RelayProcess) -> str:
    """What the relay has in memory while nothing happens on its streams but keep-alives."""
    before = resident_mib(relay)
    with reading(relay, IDLE, until="ping") as readers:
        readers.streams()
        after = resident_mib(relay)
    return f"{IDLE:,} idle streams, each kept alive once: {after:.0f} MiB resident ({before:.0f} MiB before)"


def order(relay: RelayProcess) -> str:
    """Whether all that was said arrives, once and in order, when it is said as fast as it can be written."""
    with reading(relay, MANY) as readers, ThreadPoolExecutor(_WRITERS) as pool:
        held = claims(relay.settings, readers.turn_ids)
        began, used = time.monotonic(), cpu_seconds(relay)
        list(pool.map(write_all, [held[start::_WRITERS] for start in range(_WRITERS)]))
        written = time.monotonic() - began
        streams = readers.streams()
        whole, used = time.monotonic() - began, cpu_seconds(relay) - used
    right = sum(text_of(stream) == said_of(MANY_DELTAS) for stream in streams)
    total = MANY * MANY_DELTAS
    return (
        f"{MANY} streams of {MANY_DELTAS} deltas, {total:,} events written in {written:.0f} s: {right} arrived "
        f"complete and in order, the last {whole - written:.1f} s later ({total / whole:,.0f} deltas/s, "
        f"{used / total * 1e6:.0f} µs of the relay's processor time each)"
    )


def claims(settings: Settings, turn_ids: list[str]) -> list[tuple[Ledger, LeaseClaim]]:
    """Take every turn, as a worker does."""
    ledger = Ledger(settings, "bench")
    found = []
    for turn_id in turn_ids:
        turn = ledger.read_turn(turn_id)
        assert turn
        claim = ledger.claim_turn(turn_id, turn.request.session_id, ChainTask(RUN, 1))
        assert isinstance(claim, LeaseClaim), claim
        found.append((ledger, claim))
    return found


def write_all(held: list[tuple[Ledger, LeaseClaim]]) -> None:
    """Say every delta of these turns, turn about; each is an event of its own."""
    for number in range(MANY_DELTAS):
        for ledger, claim in held:
            text = f" {number}" + _LAST * (number == MANY_DELTAS - 1)
            ledger.append_events(claim, [AttemptOutput(attempt=1, text=text)])


def said_of(deltas: int) -> str:
    return "".join(f" {number}" for number in range(deltas)) + _LAST


def heard(stream: Stream) -> Iterator[tuple[float, float]]:
    """When each delta came, and when it was said."""
    for at, payload in stream.frames():
        if isinstance(payload, dict) and payload.get("type") == "response.output_text.delta":
            for said in re.findall(r"\d+\.\d{6}", payload["delta"]):
                yield at, float(said)


def text_of(stream: Stream) -> str:
    """What the page shows in the end."""
    return Reader().read(payload for _, payload in stream.frames()).text


def cpu_seconds(relay: RelayProcess) -> float:
    """What the relay has used of processors so far."""
    assert relay.process
    fields = Path(f"/proc/{relay.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(relay: RelayProcess) -> float:
    assert relay.process
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{relay.process.pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


class Readers:
    """Readers in a process of their own, every one of which waits for its stream's end."""

    def __init__(self, relay: RelayProcess, count: int, until: str) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=read, args=(theirs, relay.port, count, until), daemon=True)
        self.process.start()
        theirs.close()  # so that their death is seen at once
        self.turn_ids: list[str] = self._received()

    def streams(self) -> list[Stream]:
        found: list[Stream] = self._received()
        return found

    def _received(self) -> Any:
        if not self._pipe.poll(_PATIENCE_SECONDS):
            raise TimeoutError("the readers have not got everything")
        return self._pipe.recv()


@contextmanager
def reading(relay: RelayProcess, count: int, until: str = "last") -> Iterator[Readers]:
    """``count`` readers, each of a turn of its own; they stay until the block ends."""
    readers = Readers(relay, count, until)
    try:
        yield readers
    finally:
        readers.process.kill()
        readers.process.join()


def read(pipe: Connection, port: int, count: int, until: str) -> None:
    """The readers' process: tells the turns when every stream is open, then what came, and waits for its end."""
    asyncio.run(_read(pipe, port, count, until))


async def _read(pipe: Connection, port: int, count: int, until: str) -> None:
    gate = asyncio.Semaphore(_OPENING)
    opened = await asyncio.gather(*(_open(gate, port, number) for number in range(count)))
    pipe.send([stream.turn_id for stream, _ in opened])
    end = b": ping" if until == "ping" else f'{_LAST}"'.encode()
    streams = await asyncio.gather(*(_to_the_end(stream, connection, end) for stream, connection in opened))
    pipe.send(streams)
    threading.Event().wait()


async def _open(gate: asyncio.Semaphore, port: int, number: int) -> tuple[Stream, asyncio.StreamReader]:
    body = json.dumps({"model": "bench", "stream": True, "messages": [{"role": "user", "content": "Sprich."}]})
    head = {
        "host": f"127.0.0.1:{port}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-owui-task": "",
        "x-owui-chat-id": f"chat-{number}",
        "x-owui-message-id": f"answer-{number}",
        "x-owui-user-message-id": f"question-{number}",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    async with gate:
        while True:
            connection, sender = await asyncio.open_connection("127.0.0.1", port)
            sender.write(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n{body}".encode())
            answer = await connection.readuntil(b"\r\n\r\n")
            if found := re.search(rb"x-turn-id: (\S+)", answer):
                break
            assert b" 503 " in answer.partition(b"\r\n")[0], answer  # busy: as it says, again in a while
            await asyncio.sleep(2)
    connection.keep = sender  # type: ignore[attr-defined]  # the connection lives as long as its sender
    return Stream(number, found[1].decode()), connection


async def _to_the_end(stream: Stream, connection: asyncio.StreamReader, end: bytes) -> Stream:
    while True:
        size = int(await connection.readline(), 16)  # a chunk of HTTP/1.1, with its length before it
        chunk = (await connection.readexactly(size + 2))[:-2]
        stream.got.append((time.monotonic(), chunk))
        if end in chunk:
            return stream


if __name__ == "__main__":
    main()

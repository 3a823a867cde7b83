"""``python -m tests.lab.bench.hostile``: how long 1,000 hostile requests hold up a relay, and their memory.

A real relay over a real store, without keys, so that no limit of an owner keeps anything away. The relay itself notes
how long its loop stood still (``watched_relay``); another process asks for ``/healthz`` every few milliseconds. Both
hold the machine's own stutter too, so the same is measured before, with nothing else to do.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import httpx2

from api_client.contract.settings import Settings
from tests.installation import RelayProcess, environ_of
from tests.support import wait_for
from worker.processes.embedded_broker import EmbeddedBroker

REQUESTS, AT_ONCE, SLOW = 1_000, 8, 40
MIB = 2**20
LARGE = 8 * MIB - 1_000
_PAUSE_SECONDS, _QUIET_SECONDS = 0.005, 5.0
_JSON = {"content-type": "application/json"}
_FORM = {"content-type": "application/x-www-form-urlencoded"}
PATTERNS = ("<chat_history>", '"""a', "<!-- STEP: ", "```", " ", "\u200b", "\u2028", "USER:\n", "%41", "a", "ä", "\\")
TASKS = (
    "title_generation",
    "tags_generation",
    "query_generation",
    "moa_response_generation",
    "image_prompt_generation",
)

#: Path, headers, body.
Request = tuple[str, dict[str, str], bytes]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        root = Path(folder) / "root"
        root.mkdir()
        settings = Settings(root=root, broker_url=broker.url, store_url=broker.url, log_level="error")
        relay = Watched(settings)
        relay.start()
        try:
            load = os.getloadavg()[0]
            with Watch(relay) as quiet:
                time.sleep(_QUIET_SECONDS)
            print(f"nothing to do      {quiet}")
            with Watch(relay) as busy:
                said, seconds = asyncio.run(_attack(relay.url))
            answers = ", ".join(f"{count} x {status}" for status, count in sorted(said.items()))
            print(f"{REQUESTS} hostile     {busy}; {answers}; {seconds:.0f} s, {SLOW} slow bodies beside them")
            with Watch(relay) as four:
                before, peak = asyncio.run(_four_at_once(relay))
            print(f"four of 8 MiB      {four}; memory of the relay {before:.0f} MiB before, {peak:.0f} MiB at most")
            print(f"load {load:.1f} before, {os.cpu_count()} cores")
        finally:
            relay.kill()


class Watched(RelayProcess):
    """A relay that notes how long its loop stood still."""

    def start(self) -> None:
        self.notes = self.settings.root / "stalls"
        command = [sys.executable, "-m", "tests.lab.bench.watched_relay", str(self.notes), str(self.port)]
        self.process = subprocess.Popen(command, env=environ_of(self.settings), stdin=subprocess.DEVNULL)
        wait_for(self.answers)

    def longest_stall(self, since: float) -> float:
        """The longest since then, in seconds."""
        notes = [line.split() for line in self.notes.read_text().splitlines()]
        return max((float(stood) for at, stood in notes if float(at) >= since), default=0.0)


class Watch:
    """Asks for ``/healthz`` again and again while it is entered; then says how long the answers took."""

    def __init__(self, relay: Watched) -> None:
        self._relay = relay
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_watch, args=(relay.port, theirs))
        self.seconds: list[float] = []

    def __enter__(self) -> Watch:
        self._process.start()
        self._pipe.recv()
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self.seconds = self._pipe.recv()
        self._process.join()

    def __str__(self) -> str:
        taken = sorted(self.seconds)
        p99 = taken[int(len(taken) * 0.99)]
        found = {"p50": statistics.median(taken), "p99": p99, "longest": taken[-1]}
        stall = 1000 * self._relay.longest_stall(self._since)
        return f"longest stall of the loop {stall:.0f} ms; /healthz " + ", ".join(
            f"{name} {1000 * value:.0f} ms" for name, value in found.items()
        )


def _watch(port: int, pipe: Connection) -> None:
    connection, taken = http.client.HTTPConnection("127.0.0.1", port, timeout=120), list[float]()
    pipe.send("ready")
    while not pipe.poll():
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        taken.append(time.perf_counter() - began)
        time.sleep(_PAUSE_SECONDS)
    pipe.send(taken)


def request(number: int) -> Request:
    """The request of this number: all kinds, in turn."""
    pattern = PATTERNS[number // 10 % len(PATTERNS)]
    text = (pattern * (MIB // len(pattern)))[:MIB]
    task = TASKS[number // 10 % len(TASKS)]
    match number % 10:
        case 0:
            return "/v1/turns", _JSON, _filled(b"0,")
        case 1:
            return "/v1/turns", _JSON, _filled(b"{},")
        case 2:
            return "/v1/turns", _JSON, b"[" * LARGE
        case 3:
            return "/v1/turns", _JSON, b'{"a":' * 99_000 + b"1" + b"}" * 99_000
        case 4:
            return "/v1/turns", _JSON, b'{"x":[' + b"1.5," * 99_000 + b"0]}"
        case 5:
            prompt = f"### Task:\nGenerate a concise title{text[:-40]}"
            return "/v1/chat/completions", _JSON, _chat(prompt)
        case 6:
            history = f"<chat_history>\n{text[:-40]}\n</chat_history>"
            return "/v1/chat/completions", _JSON | {"x-owui-task": task}, _chat(history)
        case 7:
            return "/v1/chat/completions", _JSON, _chat("a", model=text)
        case 8:
            return "/sign-in", _FORM, f"key={text}".encode()[: 8 * 1024 if number % 20 else MIB]
        case _:
            # A text of 8 MiB is read whole before it is refused; every tenth of these is a turn that is stored.
            long = _chat(text) if number % 100 == 9 else b'{"x":"' + b"," * (LARGE - 10) + b'"}'
            return "/v1/turns", _JSON, long


def _filled(value: bytes) -> bytes:
    return b'{"x":[' + value * ((LARGE - 20) // len(value)) + b"0]}"


def _chat(text: str, **more: str) -> bytes:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(body, ensure_ascii=False).encode()


async def _attack(url: str) -> tuple[Counter[str], float]:
    """Send them all, so many at once, beside bodies that trickle in; how they were answered, and how long it took."""
    numbers, said, began = iter(range(REQUESTS)), Counter[str](), time.monotonic()
    stop = asyncio.Event()
    async with httpx2.AsyncClient(base_url=url, timeout=120) as http:

        async def send() -> None:
            for number in numbers:
                path, headers, content = request(number)
                try:
                    said[str((await http.post(path, content=content, headers=headers)).status_code)] += 1
                except httpx2.TransportError as error:
                    said[type(error).__name__] += 1

        slow = [asyncio.create_task(_trickle(url, stop)) for _ in range(SLOW)]
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        seconds = time.monotonic() - began
        stop.set()
        await asyncio.gather(*slow)
    return said, seconds


async def _trickle(url: str, stop: asyncio.Event) -> None:
    """One body after the other, a byte at a time, until it is called off or closed by the relay."""
    port = int(url.rpartition(":")[2])
    while not stop.is_set():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8000\r\n\r\n")
        while not stop.is_set() and not reader.at_eof() and not writer.is_closing():
            writer.write(b"k")
            await asyncio.sleep(0.2)
        writer.close()


async def _four_at_once(relay: Watched) -> tuple[float, float]:
    """Four bodies of 8 MiB at the same time, ten times over; resident memory before and its peak, in MiB."""
    assert relay.process
    status = Path(f"/proc/{relay.process.pid}/status")
    before = _memory(status, "VmRSS")
    Path(f"/proc/{relay.process.pid}/clear_refs").write_text("5")  # the peak counts from here
    bodies = [
        _filled(b"0,"),
        _filled(b"{},"),
        b'{"x":"' + "😀".encode() * (LARGE // 4 - 10) + b'"}',
        _chat("ä" * (LARGE // 2 - 100)),
    ]
    async with httpx2.AsyncClient(base_url=relay.url, timeout=120) as http:
        for _ in range(10):
            await asyncio.gather(*(http.post("/v1/turns", content=body, headers=_JSON) for body in bodies))
    return before, _memory(status, "VmHWM")


def _memory(status: Path, name: str) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()

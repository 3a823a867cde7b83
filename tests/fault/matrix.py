"""A stage for faults: a broker, workers and a relay that live through many cases.

Failpoints are armed by files while the processes run (``failpoints.py``), so no case pays for the start of a worker.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import httpx2
import openai

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.events import Event
from api_client.contract.owners import LOCAL_OWNER
from api_client.contract.turn import Turn
from tests import records
from tests.chaos.checker import counters
from tests.installation import Installation, children_of, settings_on
from tests.support import alive, command_of, json_lines, processes_with, put, wait_for, wait_until
from worker.processes.embedded_broker import EmbeddedBroker

#: Every case of a matrix, also those that leave the same behind as another one, and campaigns whole (`make faults`).
WHOLE = "WHOLE_MATRIX" in os.environ
#: Short, because the workers here die; but a living one that stutters for a second must not lose its turn as well.
LEASE_SECONDS = 3.0
#: The only keys that may live for ever; Celery's own bindings are declared there too.
_NO_EXPIRY = {"installation", "metrics:total", "metrics:pending", "metrics:folds", "finished", "dead"}
_NO_EXPIRY |= {"policies", "policies:used"}


class Stage(Installation):
    """An installation with a broker of its own, and files by which the test signals its processes.

    ``script`` is played by the agents; ``{meet}`` in it stands for the folder that they share with the test.
    """

    def __init__(self, directory: Path, script: str, **changes: Any) -> None:
        self.meet = directory / "meet"
        self.points = directory / "points"
        for folder in (self.meet, self.points):
            folder.mkdir()
        self.script = self.meet / "script.yaml"
        self.script.write_text(script.replace("{meet}", str(self.meet)))
        self.broker = EmbeddedBroker(directory / "broker")
        self.action_log = self.meet / "action_log.jsonl"
        made = settings_on(
            self.broker,
            directory / "root",
            models={"scripted": f"scripted:{self.script}"},
            action_log=str(self.action_log),
            failpoint=str(self.points),
            lease_seconds=LEASE_SECONDS,
            kill_grace_seconds=0.3,
            log_format="json",
            locale="en",
        )
        super().__init__(replace(made, **changes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, workers: int, *, relay: bool = False) -> None:
        self.broker.start()
        for _ in range(workers):
            self.worker(wait=False)
        if relay:
            self.start_relay()
        for worker in self.workers:
            worker.wait_ready()

    @property
    def url(self) -> str:
        return self.relays[0].url

    def start_relay(self) -> None:
        if not self.relays:
            self.relay(log=self.settings.root / ".helix" / "relay.log")
        elif self.relays[0].ended():
            self.relays[0].start()

    def stop(self) -> None:
        super().stop()
        self.broker.stop()
        wait_for(lambda: not processes_with(f"HELIX_NAMESPACE={self.settings.namespace}"))

    def arm(self, point: str, order: str) -> None:
        put(self.points / point, order)

    def disarm(self) -> None:
        for file in self.points.iterdir():
            file.unlink()

    async def fired(self, point: str, at: int = 1) -> int:
        """Wait until a process passes the armed failpoint, and return the process's id."""
        mark = self.points / f"{point}.{at}"
        return int(await wait_until(lambda: mark.exists() and mark.read_text()))

    async def restart_broker(self) -> None:
        """Kill the broker, and start it again on its data when every earlier lease has expired."""
        self.broker.kill()
        back_at = time.monotonic() + 1.2 * self.settings.lease_seconds
        await wait_until(lambda: time.monotonic() > back_at)
        self.broker.start()

    def logged(self, event: str, turn_id: str) -> int:
        """Return how many log lines with this event and turn the workers have written so far."""
        return sum(
            line.get("event") == event and line.get("turn_id") == turn_id
            for worker in self.workers
            for line in json_lines(worker.log_file)
        )

    def totals(self) -> Counter[str]:
        with self.store as store:
            return records.counters(store, self.keys)

    def folded(self, turn: Turn, events: list[Event]) -> Counter[str]:
        """Return what a turn must have added to the counters, computed from its log."""
        with self.store as store:
            record = records.record(store, self.keys, turn.turn_id)
        return counters.folded(record, [event.to_dict() for event in events])

    def files_of(self, turn: Turn) -> tuple[str, str]:
        """Return the session's response.md, and the delivery that its .done names."""
        output = self.settings.sessions_dir / turn.request.session_id / "output"
        named = ""
        with contextlib.suppress(FileNotFoundError):
            named = json.loads((output / ".done").read_text())["attempt_id"]
        return (output / "response.md").read_text(), named


class InlineStage(Stage):
    """A stage whose agents run inside the worker's processes."""

    def __init__(self, directory: Path, script: str, **changes: Any) -> None:
        super().__init__(directory, script, models={"scripted": f"inline:{directory}/meet/script.yaml"}, **changes)


class Caller:
    """A chat client that repeats failed requests with the same idempotency key, as the official client does."""

    def __init__(self, stage: Stage, key: str) -> None:
        self._stage = stage
        self._headers = {"Idempotency-Key": key, "X-Conversation-ID": key}
        self._key = stage.keys.idempotency(LOCAL_OWNER, key)
        self._openai = openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="none", timeout=2.0, max_retries=8)
        self.asked = 0

    async def ask(self, text: str) -> str:
        """Return the whole answer, repeating the request until one stream is complete."""
        for _ in range(10):
            self.asked += 1
            try:
                return "".join([piece async for piece in self._stream(text)])
            except (openai.APIError, httpx2.HTTPError, EOFError):
                continue
        raise AssertionError("no stream came to its end")

    async def _stream(self, text: str) -> AsyncIterator[str]:
        messages: Any = [{"role": "user", "content": text}]
        stream = await self._openai.chat.completions.create(
            model="scripted", messages=messages, stream=True, extra_headers=self._headers
        )
        ended = False
        async for chunk in stream:
            for choice in chunk.choices:
                yield choice.delta.content or ""
                ended = ended or choice.finish_reason == "stop"
        if not ended:
            raise EOFError

    async def turn_id(self) -> str:
        """Wait until the turn of the idempotency key is stored, and return its id."""
        with self._stage.store as store:
            found: Any = await wait_until(lambda: store.get(self._key))
        return str(found.split()[0].decode())

    async def close(self) -> None:
        await self._openai.close()


async def stubbornly(client: TurnsClient, request: Any) -> str:
    """Submit a request, repeating it while the broker is unavailable."""

    async def taken() -> str:
        with contextlib.suppress(StoreUnavailable):
            return await client.submitter.submit(request)
        return ""

    return str(await wait_until(taken))


class Runs:
    """The agent runs that really happened: starts, ends, and how long each process was seen alive."""

    def __init__(self, action_log: Path) -> None:
        self._action_log = action_log
        self.starts: dict[tuple[str, int], dict[str, Any]] = {}
        self.ends: dict[tuple[str, int], float] = {}
        self._watching = asyncio.create_task(self._watch())

    def look(self) -> None:
        for line in json_lines(self._action_log):
            run = (line["turn"], line["delivery"])
            if line["event"] == "start":
                self.starts[run] = line
            else:
                self.ends[run] = line["monotonic"]

    def of(self, turn_id: str) -> set[int]:
        """Return the deliveries of a turn whose agent process was started."""
        self.look()
        return {delivery for turn, delivery in self.starts if turn == turn_id}

    def overlaps(self, turn_id: str) -> list[float]:
        """Return for each run but the first how many seconds the run before was still alive after its start."""
        numbers = sorted(self.of(turn_id))
        return [
            self.ends.get((turn_id, before), 0.0) - self.starts[turn_id, after]["monotonic"]
            for before, after in itertools.pairwise(numbers)
        ]

    async def _watch(self) -> None:
        told: set[tuple[str, int]] = set()
        while True:
            self.look()
            now = time.monotonic()
            for run in self.starts.keys() - told:
                if alive(self.starts[run]["pid"]):
                    self.ends[run] = max(now, self.ends.get(run, 0.0))
                else:
                    told.add(run)
            await asyncio.sleep(0.02)

    def close(self) -> None:
        self._watching.cancel()


def left_in_store(stage: Stage, session_id: str) -> list[str]:
    """Return keys that must not exist when all turns have ended, such as due turns and keys that never expire."""
    keys = stage.keys
    with stage.store as store:
        found = [name.decode() for name in store.scan_iter(f"{stage.settings.namespace}:*", count=1000)]
        lives = store.pipeline()
        for name in found:
            lives.pttl(name)
        start = keys.prefix
        ours = [name for name, life in zip(found, lives.execute(), strict=True) if life == -1]
        forever = [name for name in ours if name.startswith(start) and name.removeprefix(start) not in _NO_EXPIRY]
        return forever + [name for name in (keys.due, keys.session(session_id)) if name in found]


def resume(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def guard_of(worker: int) -> int:
    """Wait until a worker process has a guard, and return the guard's process id."""

    def found() -> list[int]:
        commands = {pid: command_of(pid) for pid in children_of(worker)}
        return [pid for pid, command in commands.items() if b"sandbox.guard" in command]

    [guard] = wait_for(found)
    return int(guard)

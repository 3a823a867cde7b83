"""One row at work: an emptied store, its worker processes, its client process."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.lab.bench.load import work
from tests.lab.bench.turns.costs import cpu_ms, family, machine_busy_ms, pss_mb, store_costs
from tests.lab.bench.turns.rows import Row, client_command, environment, worker_command
from worker.processes.embedded_broker import EmbeddedBroker

#: A worker that has answered no turn after this time is broken.
_READY_SECONDS = 90.0


class RowFailed(Exception):
    """A row's worker or client ended or answered wrongly; the message names its log."""


class Running:
    """A row, from the start of its processes to their end; used as a context.

    Attributes:
        ready_seconds: from the start of the worker to the end of its first turn.
    """

    def __init__(self, row: Row, broker: EmbeddedBroker, folder: Path, *, waiting: bool) -> None:
        self.row, self.store = row, redis.Redis(host="127.0.0.1", port=broker.port)
        self._broker = broker
        self._log = folder / f"{row.name}.log"
        home = folder / row.name
        if row.durable:  # an engine's server and its data are new in each round
            shutil.rmtree(home, ignore_errors=True)
        home.mkdir(exist_ok=True)
        url = f"redis://127.0.0.1:{broker.port}/0"
        self._environ = environment(row, home, url, broker.durability, waiting=waiting)
        self._worker_command = worker_command(row, waiting=waiting)
        self._client_command = client_command(row, "127.0.0.1", broker.port)
        self._home = home

    def __enter__(self) -> Self:
        self.store.flushall()
        self.store.config_resetstat()
        self.store.config_set("auto-aof-rewrite-percentage", 0)  # a rewrite would shrink the file that is measured
        started = time.monotonic()
        with self._log.open("ab") as log:
            self.worker = self._start(self._worker_command, subprocess.DEVNULL, log, log)
            errors = self._log.with_suffix(".client.log").open("wb")
            self.client = self._start(self._client_command, subprocess.PIPE, subprocess.PIPE, errors)
        try:
            self._answer(_READY_SECONDS)
            self.turns(work.FIRST, in_flight=1, seconds=_READY_SECONDS, most=1)
            self.ready_seconds = time.monotonic() - started
        except BaseException:
            self._end()
            raise
        return self

    def _start(self, command: list[str], stdin: Any, stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self._environ,
            cwd=self._home,
            start_new_session=True,
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """Kill: nothing of a row is kept, and a queue that ends in peace waits for turns that sleep."""
        for process in (self.client, self.worker):
            for pid in reversed(family(process.pid)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()
        self.store.close()

    def order(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have the client do something, and return what it says.

        Raises:
            RowFailed: the client ended, or the worker did.
        """
        assert self.client.stdin
        self.client.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.client.stdin.flush()
        return self._answer(arguments.get("seconds", 0) + _READY_SECONDS)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self.client.stdout
        overdue = threading.Timer(seconds, self.client.kill)
        overdue.start()
        line = self.client.stdout.readline()
        overdue.cancel()
        if self.worker.poll() is not None:
            raise RowFailed(f"{self.row.name}: the worker ended: {_last_lines(self._log)}")
        if not line:
            raise RowFailed(f"{self.row.name}: the client ended: {_last_lines(self._log.with_suffix('.client.log'))}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def turns(self, kind: str, *, in_flight: int, seconds: float, most: int = 10**9) -> dict[str, float]:
        """Turns of a kind for some seconds, and what each cost: the client's figures and ours, by name.

        ``others`` is the share of the machine that processes which are not the row's used meanwhile (0 to 1).
        """
        before, started = self._spent(), time.perf_counter()
        said = self.order("turns", kind=kind, in_flight=in_flight, seconds=seconds, most=most)
        took = time.perf_counter() - started
        after = self._spent()
        spent = {name: after[name] - before[name] for name in before}
        own = spent["worker_cpu_ms"] + spent["store_cpu_ms"] + spent["client_all_ms"] + spent["bench_ms"]
        others = max(0.0, spent["machine_ms"] - own) / (took * 1000 * (os.cpu_count() or 1))
        each = {
            name: spent[name] / said["turns"]
            for name in (
                "worker_cpu_ms",
                "store_cpu_ms",
                "commands",
                "in_bytes",
                "out_bytes",
                "aof_bytes",
                "memory_bytes",
            )
        }
        return said | each | {"client_cpu_ms": said["client_cpu_ms"] / said["turns"], "others": others}

    def _spent(self) -> dict[str, float]:
        return store_costs(self.store) | {
            "worker_cpu_ms": cpu_ms(self.worker.pid),
            "client_all_ms": cpu_ms(self.client.pid),
            "bench_ms": time.process_time() * 1000,
            "machine_ms": machine_busy_ms(),
        }

    def memory_mb(self) -> float:
        """Memory of the worker and of all it started (PSS)."""
        return pss_mb(self.worker.pid)

    def idle(self, seconds: float) -> dict[str, float]:
        """What the worker costs while nothing is to be done: memory, commands and processor time a second."""
        before, started = self._spent(), time.perf_counter()
        time.sleep(seconds)
        after, took = self._spent(), time.perf_counter() - started
        return {
            "idle_pss_mb": self.memory_mb(),
            # One of them is ours.
            "idle_commands_per_s": (after["commands"] - before["commands"] - 1) / took,
            "idle_round_trips_per_s": (after["round_trips"] - before["round_trips"] - 1) / took,
            "idle_cpu_ms_per_s": (after["worker_cpu_ms"] - before["worker_cpu_ms"]) / took,
        }

    def commands(self, kind: str, turns: int) -> dict[str, dict[str, float]]:
        """Commands of one turn by name, by MONITOR: ``sent`` by clients, and inside ``lua``."""
        seen: dict[str, Counter[str]] = {"sent": Counter(), "lua": Counter()}
        watcher = redis.Redis(host="127.0.0.1", port=self._broker.port)
        end, ready = f"bench-end-{os.getpid()}", threading.Event()

        def watch() -> None:
            with watcher.monitor() as monitor:  # type: ignore[no-untyped-call]
                ready.set()
                for command in monitor.listen():
                    if end in command["command"]:
                        return
                    where = "lua" if command["client_type"] == "lua" else "sent"
                    seen[where][command["command"].split(" ", 1)[0].upper()] += 1

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        ready.wait()
        self.order("turns", kind=kind, in_flight=1, seconds=60.0, most=turns, read_back=0)
        self.store.echo(end)
        watching.join()
        watcher.close()
        return {where: {name: count / turns for name, count in counts.most_common()} for where, counts in seen.items()}


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-6:]) + f" (see {log})"

"""How long things take to be ready: ``python -m tests.lab.bench.start [--rounds N] [--json]``.

Times are those of this machine now; processor seconds depend less on what else it does.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.bench.sweeper import swept
from tests.lab.bench.turns.costs import cpu_ms, family, machine_busy_ms
from worker.processes.embedded_broker import EmbeddedBroker

_NOT_KEPT = ("HELIX_", "REDIS_URL", "PYTHONDONTWRITEBYTECODE")
_TURNS = [sys.executable, "-P", "-c", "from worker.cli import main; main()"]
#: What is started, and its goal in seconds (issue 14, part 11).
GOALS = {"turns --help": 0.15, "turns run worker": 1.0, "turns up": 3.0}


@contextmanager
def _started(arguments: list[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, killed with all its children in the end."""
    process = subprocess.Popen(
        [*_TURNS, *arguments], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        for pid in reversed(family(process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()


def _until_first_line(arguments: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Seconds until it prints its first line, which says that it is ready, and processor seconds until then."""
    begun = time.perf_counter()
    with _started(arguments, environ) as process:
        assert process.stdout
        if not process.stdout.readline():
            sys.exit(f"bench: `turns {' '.join(arguments)}` ended before it was ready")
        return time.perf_counter() - begun, cpu_ms(process.pid) / 1000


def _help(environ: dict[str, str]) -> tuple[float, float]:
    spent, begun = os.times(), time.perf_counter()
    subprocess.run([*_TURNS, "--help"], env=environ, stdout=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - begun, os.times()
    return took, after.children_user + after.children_system - spent.children_user - spent.children_system


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds and processor seconds of each, round by round."""
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "cpu": []} for name in GOALS}
    with tempfile.TemporaryDirectory(prefix="turns-start-", ignore_cleanup_errors=True) as name, swept(Path(name)):
        folder = Path(name)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_KEPT)}
        kept["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")  # as on a machine where it ran before
        with EmbeddedBroker(folder / "broker") as broker:
            worker = kept | {"HELIX_ROOT": str(folder), "REDIS_URL": broker.url}
            for number in range(rounds + 1):
                home = folder / f"up-{number}"
                home.mkdir()
                up = kept | {"HELIX_ROOT": str(home)}
                ways: dict[str, Callable[[], tuple[float, float]]] = {
                    "turns --help": lambda: _help(kept),
                    "turns run worker": lambda: _until_first_line(["run", "worker"], worker),
                    "turns up": lambda up=up: _until_first_line(["up", "--json", "--port", "0", "--no-flower"], up),  # type: ignore[misc]
                }
                for what, way in ways.items():
                    seconds, cpu = way()
                    if not number:
                        continue  # the first one compiles
                    found[what]["seconds"].append(seconds)
                    found[what]["cpu"].append(cpu)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    busy, begun = machine_busy_ms(), time.monotonic()
    found = measure(options.rounds)
    own = sum(sum(values["cpu"]) for values in found.values())
    seconds = time.monotonic() - begun
    others = max(0.0, (machine_busy_ms() - busy) / 1000 - own) / (seconds * (os.cpu_count() or 1))
    if options.json:
        print(json.dumps({"others": others, "found": found}))
        return
    print(f"{options.rounds} rounds; other work took {others:.0%} of the machine\n")
    print("| | goal, s | seconds: median [lowest-highest] | processor seconds, all processes |\n|---|---|---|---|")
    for name, goal in GOALS.items():
        cells = [
            f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"
            for values in (found[name]["seconds"], found[name]["cpu"])
        ]
        print(f"| `{name}` ready | {goal:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""Where a worker's processor time goes: ``python -m tests.lab.bench.cpu_by_thread [ROW] [TURNS]``, per turn, by thread.

Turns that are rejected once, 50 in flight, on a store of its own. The kernel's counters name the threads, so nothing
slows them down; a function's share is for a profiler (``py-spy record --gil`` on one of the engine's processes).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.bench.load import work
from tests.lab.bench.turns.costs import family
from tests.lab.bench.turns.rows import ROWS
from tests.lab.bench.turns.running import Running
from tests.ports import free_port
from worker.processes.embedded_broker import EmbeddedBroker

_NAMED = Path(__file__).with_name("named")
_IN_FLIGHT, _SECONDS = 50, 60.0
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Spent:
    """What a thread has used: ms in the program and in the kernel, and how often it gave the processor up."""

    user: float = 0.0
    system: float = 0.0
    waits: float = 0.0

    def add(self, other: Spent, share: float) -> None:
        self.user += other.user * share
        self.system += other.system * share
        self.waits += other.waits * share


@dataclass(slots=True)
class Seen:
    """All threads of a row's processes, by process and thread."""

    spent: dict[tuple[int, int], tuple[str, Spent]] = field(default_factory=dict)


def look(pids: list[int]) -> Seen:
    """What every thread of these processes has spent until now."""
    seen = Seen()
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                stat = (task / "stat").read_text().rpartition(")")[2].split()
                status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
                name = (task / "comm").read_text().strip().partition("_")[0]
            except OSError:
                continue
            name = name if int(task.name) != pid else "main (Celery)" if _engine(pid) else _program(pid)
            waits = float(status["voluntary_ctxt_switches"])
            seen.spent[pid, int(task.name)] = name, Spent(int(stat[11]) * _TICK_MS, int(stat[12]) * _TICK_MS, waits)
    return seen


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _engine(pid: int) -> bool:
    return "worker.celery_worker" in _command(pid)


def _program(pid: int) -> str:
    return "guard" if "guard" in _command(pid) else "main"


def by_thread(before: Seen, after: Seen, turns: int) -> dict[str, Spent]:
    """What each kind of thread spent per turn, the dearest first."""
    found: dict[str, Spent] = defaultdict(Spent)
    for key, (name, spent) in after.spent.items():
        found[name].add(spent, 1 / turns)
        if key in before.spent:
            found[name].add(before.spent[key][1], -1 / turns)
    return dict(sorted(found.items(), key=lambda item: -item[1].user - item[1].system))


def main() -> None:
    name, turns = (*sys.argv[1:], *("ours", "1000")[len(sys.argv) - 1 :])[:2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_NAMED), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="turns-where-", ignore_cleanup_errors=True) as folder:
        store = EmbeddedBroker(Path(folder) / "store", durability="everysec", port=free_port())
        with store, Running(ROWS[name], store, Path(folder), waiting=False) as running:
            running.turns(work.REJECTED, in_flight=20, seconds=20.0, most=200)
            pids = family(running.worker.pid)
            before = look(pids)
            load = running.turns(work.REJECTED, in_flight=_IN_FLIGHT, seconds=_SECONDS, most=int(turns))
            found = by_thread(before, look(pids), int(load["turns"]))
    print(
        f"{ROWS[name].label}: {load['turns']} turns, {load['turns_per_s']:.0f} a second, others {load['others']:.0%}\n"
    )
    print("| thread | CPU ms a turn | of it in the kernel | times it waited |\n|---|---|---|---|")
    for thread, spent in found.items():
        if spent.user + spent.system >= 0.005:
            print(f"| {thread} | {spent.user + spent.system:.2f} | {spent.system:.2f} | {spent.waits:.1f} |")
    print(f"| all | {load['worker_cpu_ms']:.2f} | | |")


if __name__ == "__main__":
    main()

"""What processes and store have spent, read from /proc and INFO."""

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import redis

_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all it started that still live."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [one for child in task.read_text().split() for one in family(int(child))]
        except OSError:
            continue
    return found


def cpu_ms(pid: int) -> float:
    """Processor time of a process and of all it started, in ms (the kernel counts in 10 ms)."""
    total = 0
    for one in family(pid):
        try:
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, stat[11:15]))  # its own, and that of children which ended
    return total * 1000 / _TICKS


def pss_mb(pid: int) -> float:
    """Memory of a process and of all it started, shared pages divided by who shares them, in MB."""
    return sum(map(pss_of, family(pid)))


def pss_of(pid: int) -> float:
    """Memory of one process, shared pages divided by who shares them, in MB; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0) / 1024


def new_file_us(folder: Path) -> float:
    """What a new file below ``folder`` takes, in µs (median of 50). They stay: deleted files make ext4 slow."""
    took, there = [], Path(tempfile.mkdtemp(dir=folder))
    for number in range(50):
        began = time.perf_counter()
        (there / str(number)).touch(exist_ok=False)
        took.append(time.perf_counter() - began)
    return median(took) * 1e6


def machine_busy_ms() -> float:
    """Processor time everything on this machine has used, in ms."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) * 1000 / _TICKS


def store_costs(store: redis.Redis) -> dict[str, float]:
    """What the store has spent. Commands count everything it executed, the calls inside Lua included.

    Round trips are what it read from its clients: pieces of one or more commands.
    """
    info: dict[str, Any] = store.info("everything")
    return {
        "store_cpu_ms": (info["used_cpu_user"] + info["used_cpu_sys"]) * 1000,
        "commands": sum(entry["calls"] for name, entry in info.items() if name.startswith("cmdstat_")),
        "round_trips": info["total_reads_processed"],
        "in_bytes": info["total_net_input_bytes"],
        "out_bytes": info["total_net_output_bytes"],
        "aof_bytes": info["aof_current_size"],
        "memory_bytes": info["used_memory"],
    }

"""Measure the resources of an agent's processes from outside: memory, processes, open files, /tmp, folders."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.settings import Settings

#: Seconds between measurements; measuring folders may take a twentieth of the time.
LOOK_SECONDS = 0.5
_WALK_SHARE = 20
#: Most files and folders below a run's folders.
MAX_ENTRIES = 100_000
_MIB = 2**20
#: Seconds, and bytes of growth, after which the memory of a living process is measured again.
_WEIGHED_SECONDS, _GROWN = 60.0, 16 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """The limits on the memory, processes and files of one run. 0 means unlimited.

    Attributes:
        processes: processes and threads together.
        open_files: open files per process.
        tmp_mb: size of a sandbox's ``/tmp``, and of its ``/dev/shm``.
        folder_mb: size of the delivery's folder and HOME.
    """

    memory_mb: int = 0
    processes: int = 0
    open_files: int = 0
    tmp_mb: int = 0
    folder_mb: int = 0

    @property
    def most_processes(self) -> int:
        """Return the limit of processes to set in the kernel: twice ours, so that our check acts first."""
        return 2 * self.processes

    @property
    def most_open_files(self) -> int:
        """Return the limit of open files per process to set in the kernel: twice our own limit."""
        return 2 * self.open_files

    @classmethod
    def from_settings(cls, settings: Settings) -> ResourceLimits:
        return cls(
            memory_mb=settings.limit_memory_mb,
            processes=settings.limit_processes,
            open_files=settings.limit_open_files,
            tmp_mb=settings.limit_tmp_mb,
            folder_mb=settings.limit_folder_mb,
        )


class ResourceUsage:
    """Measures the memory, processes and files that one run uses, and compares them with the run's limits."""

    def __init__(self, bounds: ResourceLimits, folders: Sequence[Path] = (), *, sandboxed: bool = False) -> None:
        self._bounds = bounds
        self._folders = folders
        self._boxed = sandboxed
        self._next = time.monotonic() + LOOK_SECONDS
        self._next_walk = self._next

    def find_exceeded(self, pid: int) -> str:
        """Return the limit that the run exceeds, or an empty string. Measures at most twice per second."""
        now = time.monotonic()
        if now < self._next:
            return ""
        self._next = now + LOOK_SECONDS
        found = self._check_processes(pid) if pid else ""
        if not found and now >= self._next_walk:
            found = self.check_folders()
            took = time.monotonic() - now
            self._next_walk = now + max(LOOK_SECONDS, _WALK_SHARE * took)
        return found

    def check_folders(self) -> str:
        """Measure the size of the run's folders. Return the limit that they exceed, or an empty string."""
        if not self._bounds.folder_mb:
            return ""
        size = 0
        for number, blocks in enumerate(_disk_usage(self._folders), 1):
            size += blocks
            if size > self._bounds.folder_mb * _MIB:
                return f"files of more than {self._bounds.folder_mb} MiB in its folder (limit_folder_mb)"
            if number > MAX_ENTRIES:
                return f"more than {MAX_ENTRIES} files in its folder"
        return ""

    def _check_processes(self, pid: int) -> str:
        bounds, tree = self._bounds, _process_tree(pid)
        if bounds.processes and sum(each.threads for each in tree) > bounds.processes:
            return f"more than {bounds.processes} processes and threads (limit_processes)"
        if bounds.memory_mb and self._measure_memory(tree) > bounds.memory_mb * _MIB:
            return f"more than {bounds.memory_mb} MiB of memory (HELIX_LIMIT_MEMORY_MB)"
        if bounds.open_files and any(_count_open_files(each.pid) > bounds.open_files for each in tree):
            return f"more than {bounds.open_files} open files in one process (limit_open_files)"
        if bounds.tmp_mb and self._boxed and tree:
            for name in ("tmp", "dev/shm"):
                if _is_full(f"/proc/{tree[-1].pid}/root/{name}", f"/{name}", bounds.tmp_mb * _MIB):
                    return f"{bounds.tmp_mb} MiB in /{name} (limit_tmp_mb)"
        return ""

    def _measure_memory(self, tree: Sequence[ProcessStat]) -> int:
        rough = sum(each.resident for each in tree)
        return rough if rough <= self._bounds.memory_mb * _MIB else sum(_proportional_memory(each) for each in tree)


@dataclass(slots=True)
class MemoryMeter:
    """Measures how much memory would become free if some processes ended, not counting program files."""

    _bytes: int = 0
    _resident: int = 0
    _at: float = -math.inf

    def measure(self, pids: Iterable[int]) -> int:
        """Return the memory of these processes in bytes, never too low. May block."""
        found = [facts[1] for facts in map(_read_stat, map(str, pids)) if facts]
        resident, now = sum(each.resident for each in found), time.monotonic()
        if now - self._at > _WEIGHED_SECONDS or resident - self._resident > _GROWN:
            self._bytes, self._resident, self._at = sum(map(_freeable_memory, found)), resident, now
        return self._bytes + max(0, resident - self._resident)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The id, the number of threads and the resident memory in bytes of one process."""

    pid: int
    threads: int
    resident: int


_Seen = tuple[dict[int, ProcessStat], dict[int, list[ProcessStat]]]
_PAGE = os.sysconf("SC_PAGE_SIZE")
_lock = threading.Lock()
_seen: tuple[float, _Seen] = (0.0, ({}, {}))


def _process_tree(pid: int) -> list[ProcessStat]:
    processes, children = _list_processes()
    found = [processes[pid]] if pid in processes else []
    for each in found:
        found.extend(children.get(each.pid, ()))
    return found


def _list_processes() -> _Seen:
    """Return all processes by id, and each process's children, cached for a quarter of a second."""
    global _seen
    with _lock:
        at, found = _seen
        if time.monotonic() - at > LOOK_SECONDS / 2:
            found = ({}, {})
            for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough
                if entry.isdecimal() and (facts := _read_stat(entry)):
                    parent, process = facts
                    found[0][process.pid] = process
                    found[1].setdefault(parent, []).append(process)
            _seen = (time.monotonic(), found)
        return found


def _read_stat(pid: str) -> tuple[int, ProcessStat] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as source:  # noqa: PTH123 - a fifth of pathlib's time
            fields = source.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), ProcessStat(int(pid), int(fields[17]), int(fields[21]) * _PAGE)


def _proportional_memory(process: ProcessStat) -> int:
    return _read_smaps(process).get("Pss", process.resident)


def _freeable_memory(process: ProcessStat) -> int:
    shares = _read_smaps(process)
    return shares.get("Pss", process.resident) - shares.get("Pss_File", 0)


def _read_smaps(process: ProcessStat) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except (ProcessLookupError, FileNotFoundError):  # gone, or a zombie: its memory is free
        return {"Pss": 0}
    except OSError:
        return {}
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}


def _count_open_files(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    try:  # since Linux 6.2, the folder's size is the number of open files
        return os.stat(folder).st_size or len(os.listdir(folder))  # noqa: PTH116, PTH208 - on the path of every look
    except OSError:
        return 0


def _is_full(path: str, ours: str, allowed: int) -> bool:
    try:
        if os.stat(path).st_dev == os.stat(ours).st_dev:  # noqa: PTH116 - on the path of every look
            return False
        facts = os.statvfs(path)
    except OSError:
        return False
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize >= allowed - _PAGE


def _disk_usage(folders: Sequence[Path]) -> Iterator[int]:
    waiting = list(map(str, folders))
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)

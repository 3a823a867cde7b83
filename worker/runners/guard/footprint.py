"""The use of the machine by an agent and all it started: memory, processes, open files, /tmp, folders.

Looked at from outside, every half second, without any privilege: an agent cannot switch it off, and what it uses
between two looks is not seen. The kernel itself bounds open files, the box's ``/tmp``, and, unless the worker is root,
processes in a box (docs/security.md).
"""

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

#: How often a run is looked at, in seconds. Walking its folders may take a twentieth of the time.
LOOK_SECONDS = 0.5
_WALK_SHARE = 20
#: More entries than this below one run's folders are too many, whatever their size.
MAX_ENTRIES = 100_000
_MIB = 2**20
#: What lives on is weighed again after this time, in seconds, or when it has grown by more bytes than this.
_WEIGHED_SECONDS, _GROWN = 60.0, 16 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a run; 0: any amount.

    Attributes:
        memory_mb: memory of all its processes together. processes: processes and threads, all together.
        open_files: open files of each process. tmp_mb: size of a box's ``/tmp``, and of its ``/dev/shm``.
        folder_mb: size of the folders it writes, the delivery's and its HOME.
    """

    memory_mb: int = 0
    processes: int = 0
    open_files: int = 0
    tmp_mb: int = 0
    folder_mb: int = 0

    @property
    def most_processes(self) -> int:
        """At how many the kernel refuses more: above the bound, so that who is over it is seen before it is stopped."""
        return 2 * self.processes

    @property
    def most_open_files(self) -> int:
        """The same for the open files of each process."""
        return 2 * self.open_files

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """The bounds of an installation."""
        return cls(
            memory_mb=settings.limit_memory_mb,
            processes=settings.limit_processes,
            open_files=settings.limit_open_files,
            tmp_mb=settings.limit_tmp_mb,
            folder_mb=settings.limit_folder_mb,
        )


class Footprint:
    """One run's use of the machine, looked at again and again by the thread that watches the run.

    ``folders`` are what it writes, where a bound on that makes sense. ``boxed``: its ``/tmp`` is its own.
    """

    def __init__(self, bounds: Bounds, folders: Sequence[Path] = (), *, boxed: bool = False) -> None:
        self._bounds = bounds
        self._folders = folders
        self._boxed = boxed
        self._next = time.monotonic() + LOOK_SECONDS
        self._next_walk = self._next

    def exceeded(self, pid: int) -> str:
        """The bound that the run is over by now, empty for none; looks at most every half second.

        ``pid`` is the run's first process; 0 while it is not known.
        """
        now = time.monotonic()
        if now < self._next:
            return ""
        self._next = now + LOOK_SECONDS
        found = self._processes(pid) if pid else ""
        if not found and now >= self._next_walk:
            found = self.folders()
            took = time.monotonic() - now
            self._next_walk = now + max(LOOK_SECONDS, _WALK_SHARE * took)
        return found

    def folders(self) -> str:
        """The same for the run's folders alone, at once."""
        if not self._bounds.folder_mb:
            return ""
        size = 0
        for number, blocks in enumerate(_sizes(self._folders), 1):
            size += blocks
            if size > self._bounds.folder_mb * _MIB:
                return f"files of more than {self._bounds.folder_mb} MiB in its folder (limit_folder_mb)"
            if number > MAX_ENTRIES:
                return f"more than {MAX_ENTRIES} files in its folder"
        return ""

    def _processes(self, pid: int) -> str:
        bounds, tree = self._bounds, _tree(pid)
        if bounds.processes and sum(each.threads for each in tree) > bounds.processes:
            return f"more than {bounds.processes} processes and threads (limit_processes)"
        if bounds.memory_mb and self._memory(tree) > bounds.memory_mb * _MIB:
            return f"more than {bounds.memory_mb} MiB of memory (HELIX_LIMIT_MEMORY_MB)"
        if bounds.open_files and any(_open_files(each.pid) > bounds.open_files for each in tree):
            return f"more than {bounds.open_files} open files in one process (limit_open_files)"
        if bounds.tmp_mb and self._boxed and tree:
            for name in ("tmp", "dev/shm"):
                if _full(f"/proc/{tree[-1].pid}/root/{name}", f"/{name}", bounds.tmp_mb * _MIB):
                    return f"{bounds.tmp_mb} MiB in /{name} (limit_tmp_mb)"
        return ""

    def _memory(self, tree: Sequence[Process]) -> int:
        """Return what the processes use together, in bytes. Pages that they share are counted once, when it matters."""
        rough = sum(each.resident for each in tree)
        return rough if rough <= self._bounds.memory_mb * _MIB else sum(_own_memory(each) for each in tree)


@dataclass(slots=True)
class Weight:
    """The memory of some processes that live on, weighed again only where that may have changed much.

    What ending them gives back: without the pages of the files they run, which all of a kind share, and which the
    kernel drops when it needs room. To weigh one that holds 100 MiB costs the kernel 5 ms, to read how much of it is
    resident next to nothing.
    """

    _bytes: int = 0
    _resident: int = 0
    _at: float = -math.inf

    def of(self, pids: Iterable[int]) -> int:
        """Return what they use together, in bytes, and rather too much than too little. May block."""
        found = [facts[1] for facts in map(_stat, map(str, pids)) if facts]
        resident, now = sum(each.resident for each in found), time.monotonic()
        if now - self._at > _WEIGHED_SECONDS or resident - self._resident > _GROWN:
            self._bytes, self._resident, self._at = sum(map(_kept_memory, found)), resident, now
        return self._bytes + max(0, resident - self._resident)


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its number, its threads, and its resident memory in bytes."""

    pid: int
    threads: int
    resident: int


_Seen = tuple[dict[int, Process], dict[int, list[Process]]]
_PAGE = os.sysconf("SC_PAGE_SIZE")
_lock = threading.Lock()
_seen: tuple[float, _Seen] = (0.0, ({}, {}))


def _tree(pid: int) -> list[Process]:
    """A process and all that descend from it. Takes as long as they are many, whatever else runs here."""
    processes, children = _look()
    found = [processes[pid]] if pid in processes else []
    for each in found:
        found.extend(children.get(each.pid, ()))
    return found


def _look() -> _Seen:
    """Every process by its number, and by its parent, as of the last moments: all runs of a worker share one look."""
    global _seen
    with _lock:
        at, found = _seen
        if time.monotonic() - at > LOOK_SECONDS / 2:
            found = ({}, {})
            for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough
                if entry.isdecimal() and (facts := _stat(entry)):
                    parent, process = facts
                    found[0][process.pid] = process
                    found[1].setdefault(parent, []).append(process)
            _seen = (time.monotonic(), found)
        return found


def _stat(pid: str) -> tuple[int, Process] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as source:  # noqa: PTH123 - a fifth of pathlib's time
            fields = source.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), Process(int(pid), int(fields[17]), int(fields[21]) * _PAGE)


def _own_memory(process: Process) -> int:
    """A process's share of the memory it is in; all of it where the kernel does not say, nothing once it has ended."""
    return _shares(process).get("Pss", process.resident)


def _kept_memory(process: Process) -> int:
    shares = _shares(process)
    return shares.get("Pss", process.resident) - shares.get("Pss_File", 0)


def _shares(process: Process) -> dict[str, int]:
    """A process's memory by the kernel's names, in bytes; without any where it does not say."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except (ProcessLookupError, FileNotFoundError):  # gone, or nobody has waited for it yet: its memory is free
        return {"Pss": 0}
    except OSError:
        return {}
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}


def _open_files(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    try:  # the folder's size is their number since Linux 6.2
        return os.stat(folder).st_size or len(os.listdir(folder))  # noqa: PTH116, PTH208 - on the path of every look
    except OSError:
        return 0


def _full(path: str, ours: str, allowed: int) -> bool:
    """True when a box's file system is full; not when it is still ours, as long as the box is being made."""
    try:
        if os.stat(path).st_dev == os.stat(ours).st_dev:  # noqa: PTH116 - on the path of every look
            return False
        facts = os.statvfs(path)
    except OSError:
        return False
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize >= allowed - _PAGE


def _sizes(folders: Sequence[Path]) -> Iterator[int]:
    """The room that each entry below some folders takes on the disk, in bytes; no link is followed."""
    waiting = list(map(str, folders))
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)

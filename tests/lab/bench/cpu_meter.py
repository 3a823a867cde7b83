"""Measures the CPU time of an installation's processes, split into agents and everything else.

What a parent has waited for says too little: the time of processes that die with their sandbox is added to nobody. So a
thread looks at all living processes again and again, and what was last seen of a dead one counts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from tests.installation import children_of

#: Seconds between two looks at the agents, and how many of them go by before new processes are looked for.
_LOOK_SECONDS, _SEARCH = 0.02, 5
_MS = 1000 / os.sysconf("SC_CLK_TCK")
#: A process: its id and when it started, as ids are used again.
_Key = tuple[int, int]


class CpuMeter:
    """Counts the CPU time of the families of some processes. An agent is a process that runs ``program``.

    An agent's children are its own. The end of an agent's life, since the last look at it, is not seen.
    """

    def __init__(self, pids: Sequence[int], program: Path) -> None:
        self._pids, self._program = pids, program
        self._agents: dict[_Key, int] = {}
        self._others: dict[_Key, int] = {}
        self._living: list[int] = []
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch_agents, daemon=True)

    def __enter__(self) -> CpuMeter:
        """Start to look at the agents."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def measure(self) -> tuple[float, float]:
        """Return the CPU time so far in ms: of agents, and of all other processes (the kernel counts in 10 ms)."""
        with self._lock:
            self._look(search=True)
            return sum(self._agents.values()) * _MS, sum(self._others.values()) * _MS

    def _watch_agents(self) -> None:
        number = 0
        while not self._ended.wait(_LOOK_SECONDS):
            with self._lock:
                self._look(search=number % _SEARCH == 0)
            number += 1

    def _look(self, *, search: bool) -> None:
        if search:
            self._living = [agent for first in self._pids for agent in self._find_agents(first)]
        else:
            self._living = [pid for pid in self._living if self._note(pid)]

    def _find_agents(self, pid: int) -> Iterator[int]:
        """Note what a process and all that it started have used, and yield the agents among them."""
        if self._note(pid):
            yield pid
            return
        with contextlib.suppress(OSError):  # it has just ended
            for child in children_of(pid):
                yield from self._find_agents(child)

    def _note(self, pid: int) -> bool:
        """Note what a process has used, and return whether it is an agent."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            is_agent = Path(f"/proc/{pid}/exe").readlink() == self._program
        except OSError:
            return False
        key, own, of_children = (pid, int(stat[19])), sum(map(int, stat[11:13])), sum(map(int, stat[13:15]))
        if is_agent:
            self._others.pop(key, None)  # it was the program that became the agent
            self._agents[key] = own + of_children
        else:
            self._others[key] = own
        return is_agent

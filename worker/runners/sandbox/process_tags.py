"""Find and end all processes of one run by the tag in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

#: Environment variable of the process tag; its value is ``<turn>.<attempt>.<delivery>``.
TAG_VARIABLE = "HELIX_AGENT_MARK"

_PREFIX = f"{TAG_VARIABLE}=".encode()
#: Seconds for which processes are killed that keep starting others.
_KILL_SECONDS = 5.0


def process_tags() -> Iterator[tuple[int, str]]:
    """Yield the id and the process tag, possibly empty, of every process on this machine."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough, and this is on the path of every run
        if entry.isdecimal():
            yield int(entry), _tag_in(_read_proc_file(f"/proc/{entry}/environ"))


def _read_proc_file(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    pieces = []
    try:
        while piece := os.read(fd, 65_536):
            pieces.append(piece)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(pieces)


def _read_stat(pid: int) -> list[bytes]:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        # The process name, in brackets, may contain spaces and brackets.
        return os.read(fd, 4096).rpartition(b")")[2].split(maxsplit=2)
    except OSError:
        return []
    finally:
        os.close(fd)


def _tag_in(environ: bytes) -> str:
    _, found, rest = (b"\0" + environ).partition(b"\0" + _PREFIX)
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else ""


def parent_of(pid: int) -> int:
    """Return the id of a process's parent, or 0 if the process is gone."""
    fields = _read_stat(pid)
    return int(fields[1]) if fields else 0


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that a process's main thread has started and not yet reaped."""
    return list(map(int, _read_proc_file(f"/proc/{pid}/task/{pid}/children").split()))


def list_family(pid: int) -> set[int]:
    """Return the ids of a process and of all descendants that main threads started."""
    return {pid}.union(*map(list_family, children_of(pid)))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    return _read_stat(pid)[:1] in ([b"T"], [b"t"])


def inner_process_id(pid: int) -> int:
    """Return the id that a process has inside its sandbox (PID namespace), or 0 if the process is gone."""
    found = _read_proc_file(f"/proc/{pid}/status").partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return int(found[-1]) if found else 0


def find_agent_processes(first: int, mark: str) -> set[int]:
    """Return the ids of an agent's processes: the first process, its descendants, and all processes with its tag."""
    seen = dict(process_tags())
    parents = {pid: parent_of(pid) for pid in seen}
    guard, found = parents.get(first, 0), {pid for pid, found in seen.items() if found == mark or pid == first}
    found |= {pid for pid, parent in parents.items() if guard and parent == guard and not seen[pid]}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def suspend_agent(first: int, mark: str) -> list[int]:
    """Stop all running processes of an agent with SIGSTOP, and return their ids."""
    stopped: list[int] = []
    for _ in range(5):
        found = [
            pid for pid in sorted(find_agent_processes(first, mark)) if (_read_stat(pid) or [b"X"])[0] not in b"TtZX"
        ]
        for pid in found:
            send_signal(pid, signal.SIGSTOP)
        stopped += [pid for pid in found if pid not in stopped]
        if not found:
            break
    return stopped


def send_signal(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, ignoring the error if the process is gone or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_tagged(mark: str) -> tuple[int, ...]:
    """Kill every process with this tag, and return the ids of surviving processes."""
    return _kill_matching(lambda seen: seen == mark)


def kill_earlier_deliveries(turn: str, delivery: int) -> tuple[int, ...]:
    """Kill the processes that earlier runs of a turn left behind, and return the ids of surviving processes."""

    def is_earlier(mark: str) -> bool:
        number = mark.rpartition(".")[2]
        return mark.startswith(f"{turn}.") and number.isascii() and number.isdecimal() and int(number) < delivery

    return _kill_matching(is_earlier)


def _kill_matching(ours: Callable[[str], bool]) -> tuple[int, ...]:
    give_up = time.monotonic() + _KILL_SECONDS
    while True:
        found = tuple(pid for pid, seen in process_tags() if seen and ours(seen))
        if not found or time.monotonic() >= give_up:
            return found
        for pid in found:
            send_signal(pid)
        time.sleep(0.005)

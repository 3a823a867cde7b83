"""A box around a whole agent: bubblewrap, when the machine has it (docs/security.md).

Inside are a read-only system, a ``/tmp``, its own ``/proc`` and ``/dev``, no other process, and of all the rest only
what the run names. Its network is its own too, with nobody else in it: what leads out is a door (``forwarder``).
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worker.runners.guard.seccomp import filter_path

#: The port on the box's own loopback at which a run finds its door.
PORT = 47_623
#: The same as the base address of a service. A run without its own network gets another one in its place (``launch``).
DOOR = f"http://127.0.0.1:{PORT}"
#: The first program in a box.
_INSIDE = Path(__file__).with_name("inside.py")

#: What of the machine is inside. Not there: homes, ``/run`` with its sockets, ``/var``, ``/srv``, other disks.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix")
_RESOLVER = Path("/etc/resolv.conf")
#: Where the agent has its own users and can make no others: its keyring is nobody else's, no capability is left. The
#: strongest first; bubblewrap has the second option since 0.8, and some kernels and containers refuse both.
_OWN_USERS = (("--unshare-user", "--disable-userns"), ("--unshare-user",))
#: Gives bubblewrap the filter, which it takes as an open file.
_WITH_FILTER = ("/bin/sh", "-c", 'filter=$1 && shift && exec "$@" 3<"$filter"', "sh")
#: A box that cannot be made says so within this time, in seconds.
_PATIENCE = 10
#: Commands that have worked.
_proven: set[tuple[str, ...]] = set()


class BoxError(Exception):
    """A box is required and cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder that is in the box at its own path. Where one is in another, the later one counts."""

    path: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """In what an agent runs; ``cut``: in its own network."""

    kind: Literal["bubblewrap", "none"] = "none"
    cut: bool = False


def level(mode: str, *, wanted: bool) -> Level:
    """In what an agent runs; ``mode`` is ``HELIX_BOX``: off, auto (where it is ``wanted`` and works) or required.

    An agent that does what a model says wants one. Raises ``BoxError``: it is required and cannot be made.
    """
    if mode == "off" or (mode == "auto" and not wanted):
        return Level()
    problem, shared = obstacle(), network_obstacle()
    if mode == "required" and (problem or shared):
        raise BoxError(f"HELIX_BOX=required, but {problem or shared}")
    return Level() if problem else Level("bubblewrap", cut=not shared)


def is_used(mode: str) -> bool:
    """Return whether an agent that does what a model says runs in a sandbox; ``mode`` as for ``level``."""
    try:
        return level(mode, wanted=True).kind != "none"
    except BoxError:
        return False  # it is not started at all


def obstacle() -> str:
    """Say why no box can be made here; empty when one can. Tried with a real one, and found to work for good."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (no bwrap on PATH)"
    return _problem_of(boxed(["true"], Path("/usr"), (), cut=False), "a box")


def network_obstacle() -> str:
    """Return why a box cannot have a separate network here, so it shares the machine's; empty when it can have one."""
    return obstacle() or _problem_of(boxed(["true"], Path("/usr"), ()), "a box with its own network")


def weakness() -> str:
    """Return what the sandbox lacks on this machine; empty when it has all."""
    lacking = [] if filter_path() else [f"no filter of system calls is known for {platform.machine()}"]
    program, best = shutil.which("bwrap") or "bwrap", _OWN_USERS[0]
    if (options := own_users(program)) != best:
        kept_from = "further user namespaces" if options else "the keyring of the worker's user and user namespaces"
        why = _problem_of(_trial(program, best), "better ones") if _knows(program, best) else "bubblewrap is before 0.8"
        lacking.append(f"only the filter of system calls keeps agents from {kept_from}: {why}")
    return "; ".join(lacking)


def own_users(program: str) -> tuple[str, ...]:
    """Return the options for the strongest user namespace that can be made here; none where none can."""
    known = (options for options in _OWN_USERS if _knows(program, options))
    return next((options for options in known if not _problem_of(_trial(program, options), "it")), ())


def _knows(program: str, options: Iterable[str]) -> bool:
    return all(option in _help_of(program) for option in options)


def _trial(program: str, options: Iterable[str]) -> list[str]:
    return [program, *options, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]


def _problem_of(command: list[str], what: str) -> str:
    """Return why this command does not work; empty when it does."""
    if (key := tuple(command)) in _proven:
        return ""
    try:
        made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run: {error}"
    if made.returncode:
        said = made.stderr.decode("utf-8", "replace").strip() or f"exit code {made.returncode}"
        return f"bubblewrap cannot make {what} here: {said[-300:]}"
    _proven.add(key)
    return ""


def boxed(
    argv: Sequence[str],
    cwd: Path,
    binds: Iterable[Bind],
    *,
    cut: bool = True,
    tmp_mb: int = 0,
    hidden: Iterable[Path] = (),
) -> list[str]:
    """The command that runs ``argv`` in a box, in ``cwd``.

    Of two ``binds`` that overlap the later counts. ``cut``: in its own network. ``tmp_mb`` is the size of its ``/tmp``
    and of its ``/dev/shm``, in MiB; 0: half of the machine's memory each. Of ``hidden`` nothing is inside.
    """
    # Without --new-session: the guard has made one, and signals its group.
    program = shutil.which("bwrap") or "bwrap"  # by our PATH, not by the agent's
    rules = filter_path()
    command = [*_WITH_FILTER, rules, program, "--seccomp", "3"] if rules else [program]
    command += [*own_users(program), "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try"]
    command += ["--unshare-net"] if cut else []
    command += ["--cap-drop", "ALL"]
    for folder in _SYSTEM:
        command += ["--ro-bind-try", folder, folder]
    for closed in _closed(Path("/etc")):
        command += _hiding(closed)
    if (resolver := _RESOLVER.resolve()) != _RESOLVER:
        command += ["--ro-bind-try", str(resolver), str(resolver)]
    # Before 0.7 bubblewrap could not bound a tmpfs; then only its use is watched.
    size = ["--size", str(tmp_mb * 2**20)] if tmp_mb and _knows(program, ["--size"]) else []
    command += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", *size, "--tmpfs", "/tmp"]  # noqa: S108
    for name in _hidden_in_proc():
        command += ["--ro-bind", "/dev/null", name]
    for bind in binds:
        command += ["--bind-try" if bind.writable else "--ro-bind-try", str(bind.path), str(bind.path)]
    for path in hidden:
        command += _hiding(path)
    # Root could write the kernel's settings in /proc/sys, also without any capability.
    command += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", str(cwd), "--", *argv]


def _hiding(path: Path) -> list[str]:
    return ["--tmpfs", str(path), "--remount-ro", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]


@functools.cache
def _help_of(program: str) -> str:
    """Return what a bubblewrap says about its options; empty where it does not run."""
    try:
        done = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def started(argv: Sequence[str], door: Path | None, processes: int) -> list[str]:
    """The command that starts ``argv`` inside a box, behind its first program; ``FIRST`` are its binds.

    ``door`` is the socket that leads out. ``processes``: how many its user may have there; 0 for any number.
    """
    first = [sys.executable, "-I", "-S", str(_INSIDE), str(door or ""), str(PORT), str(processes)]
    return [*first, *argv]


def own_numbers(made: Level) -> frozenset[int]:
    """The process numbers that a box's own programs have in it, which nobody else gets while they live.

    bubblewrap's first process, the agent, and what listens for it, whose parent has ended.
    """
    return frozenset({1, 2, 4} if made.cut else {1, 2})


#: What the first program in a box needs there.
FIRST = tuple(Bind(Path(path)) for path in dict.fromkeys((sys.base_prefix, sys.prefix, str(_INSIDE))))


def nested(own: Bind, others: Sequence[Bind]) -> list[Bind]:
    """``own`` among other binds: behind those it is in, which would hide it, and before those that are in it.

    The folder of such an agent may be in its project, which agents may otherwise only read.
    """
    around = [bind for bind in others if own.path.is_relative_to(bind.path)]
    return [*around, own, *(bind for bind in others if bind not in around)]


def _closed(folder: Path) -> Iterator[Path]:
    """Yield what not everybody may read below a folder, such as ``/etc/shadow``: a worker that is root could."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode):
            if mode & stat.S_IXOTH:
                yield from _closed(Path(entry.path))
            else:
                yield Path(entry.path)
        elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
            yield Path(entry.path)


@functools.cache
def _hidden_in_proc() -> list[str]:
    """Return what of the kernel's files is not for everybody, and those that name the keys of the worker's user."""
    files = [entry for entry in os.scandir("/proc") if entry.is_file(follow_symlinks=False)]
    return [e.path for e in files if e.name in {"keys", "key-users"} or not e.stat().st_mode & stat.S_IROTH]


def failed(stderr: str) -> str:
    """Return what bubblewrap itself said; empty when it made the box."""
    return stderr.strip() if stderr.startswith("bwrap: ") else ""

"""Build the bubblewrap command that runs an agent in a sandbox (docs/security.md).

A sandbox holds a read-only system, a private ``/tmp``, ``/proc`` and ``/dev``, the paths that the run names, and no
network except for the model proxy.
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

from worker.runners.sandbox.seccomp import filter_path

#: Port on the sandbox's loopback interface where an agent finds its model proxy.
PROXY_PORT = 47_623
#: Base address of the model service inside a sandbox. ``launch`` replaces it for agents that share the network.
PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"
_INSIDE = Path(__file__).with_name("sandbox_entry.py")

#: Visible folders of the machine: no homes, no ``/run`` with its sockets, no ``/var``.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix")
_RESOLVER = Path("/etc/resolv.conf")
#: Options for a private user namespace, strongest first; some machines refuse some of them.
_OWN_USERS = (("--unshare-user", "--disable-userns"), ("--unshare-user",))
#: Shell wrapper that opens the seccomp filter on descriptor 3 for bubblewrap.
_WITH_FILTER = ("/bin/sh", "-c", 'filter=$1 && shift && exec "$@" 3<"$filter"', "sh")
#: Time limit for a trial run of bubblewrap, in seconds.
_PATIENCE = 10
_proven: set[tuple[str, ...]] = set()


class SandboxError(Exception):
    """Raised when a required sandbox cannot be created. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class SandboxMount:
    """A file or folder that appears in the sandbox under its own path. Later mounts hide earlier ones."""

    path: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation of an agent: the sandbox program, and whether the agent has a separate network (``cut``)."""

    kind: Literal["bubblewrap", "none"] = "none"
    cut: bool = False


def choose_isolation(mode: str, *, wanted: bool) -> Isolation:
    """Return how to isolate an agent in a mode of ``HELIX_SANDBOX``: ``off``, ``auto`` or ``required``.

    In mode auto, an agent gets a sandbox if it is ``wanted`` (its model chooses its actions) and the machine can make
    one. Raises ``SandboxError`` if a required sandbox cannot be made.
    """
    if mode == "off" or (mode == "auto" and not wanted):
        return Isolation()
    problem, shared = find_obstacle(), find_network_obstacle()
    if mode == "required" and (problem or shared):
        raise SandboxError(f"HELIX_SANDBOX=required, but {problem or shared}")
    return Isolation() if problem else Isolation("bubblewrap", cut=not shared)


def uses_sandbox(mode: str) -> bool:
    """Return whether this mode of ``HELIX_SANDBOX`` sandboxes agents whose model chooses their actions."""
    try:
        return choose_isolation(mode, wanted=True).kind != "none"
    except SandboxError:
        return False


def find_obstacle() -> str:
    """Return why this machine cannot create a sandbox, or an empty string if it can."""
    if (program := shutil.which("bwrap")) is None:
        return "bubblewrap is not installed (no bwrap on PATH)"
    return _try_sandbox(program, "a sandbox", cut=False)


def find_network_obstacle() -> str:
    """Return why this machine cannot give a sandbox a separate network, or an empty string if it can."""
    return find_obstacle() or _try_sandbox(shutil.which("bwrap") or "", "a sandbox with its own network", cut=True)


def _try_sandbox(program: str, what: str, *, cut: bool) -> str:
    """Return why this machine cannot create a sandbox. A successful test is not repeated."""
    if (key := (program, str(cut))) in _proven:
        return ""
    problem = _try_command(sandbox_command(["true"], Path("/usr"), (), cut=cut), what)
    _proven.update([] if problem else [key])
    return problem


def find_weakness() -> str:
    """Describe the protections that a sandbox on this machine lacks, or return an empty string."""
    lacking = [] if filter_path() else [f"no filter of system calls is known for {platform.machine()}"]
    program, best = shutil.which("bwrap") or "bwrap", _OWN_USERS[0]
    if (options := user_namespace_options(program)) != best:
        kept_from = "further user namespaces" if options else "the keyring of the worker's user and user namespaces"
        why = (
            _try_command(_trial_command(program, best), "better ones")
            if _supports_options(program, best)
            else "bubblewrap is before 0.8"
        )
        lacking.append(f"only the filter of system calls keeps agents from {kept_from}: {why}")
    return "; ".join(lacking)


def user_namespace_options(program: str) -> tuple[str, ...]:
    """Return the options of bubblewrap for the strongest user namespace that this machine can create."""
    known = (options for options in _OWN_USERS if _supports_options(program, options))
    return next((options for options in known if not _try_command(_trial_command(program, options), "it")), ())


def _supports_options(program: str, options: Iterable[str]) -> bool:
    return all(option in _read_help(program) for option in options)


def _trial_command(program: str, options: Iterable[str]) -> list[str]:
    return [program, *options, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]


def _try_command(command: list[str], what: str) -> str:
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


def sandbox_command(
    argv: Sequence[str],
    cwd: Path,
    binds: Iterable[SandboxMount],
    *,
    cut: bool = True,
    tmp_mb: int = 0,
    hidden: Iterable[Path] = (),
) -> list[str]:
    """Return the command that runs ``argv`` in a sandbox with ``cwd`` as its working directory.

    Later ``binds`` cover earlier ones. ``cut`` gives a separate network. ``tmp_mb`` limits ``/tmp`` and ``/dev/shm``,
    in MiB; 0 means half of the memory. Paths in ``hidden`` are masked.
    """
    # No --new-session: the guard has already made one and signals its process group.
    program = shutil.which("bwrap") or "bwrap"  # searched on the worker's PATH, not the agent's
    rules = filter_path()
    command = [*_WITH_FILTER, rules, program, "--seccomp", "3"] if rules else [program]
    command += [
        *user_namespace_options(program),
        "--die-with-parent",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
    ]
    command += ["--unshare-cgroup-try"]
    command += ["--unshare-net"] if cut else []
    command += ["--cap-drop", "ALL"]
    for folder in _SYSTEM:
        command += ["--ro-bind-try", folder, folder]
    for closed in _unreadable_paths(Path("/etc")):
        command += _hide_path(closed)
    if (resolver := _RESOLVER.resolve()) != _RESOLVER:
        command += ["--ro-bind-try", str(resolver), str(resolver)]
    # bubblewrap before 0.7 cannot limit a tmpfs.
    size = ["--size", str(tmp_mb * 2**20)] if tmp_mb and _supports_options(program, ["--size"]) else []
    command += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", *size, "--tmpfs", "/tmp"]  # noqa: S108
    for name in _hidden_in_proc():
        command += ["--ro-bind", "/dev/null", name]
    for bind in binds:
        command += ["--bind-try" if bind.writable else "--ro-bind-try", str(bind.path), str(bind.path)]
    for path in hidden:
        command += _hide_path(path)
    # Root could write kernel settings in /proc/sys even without capabilities.
    command += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", str(cwd), "--", *argv]


def _hide_path(path: Path) -> list[str]:
    return ["--tmpfs", str(path), "--remount-ro", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]


@functools.cache
def _read_help(program: str) -> str:
    try:
        done = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def start_command(argv: Sequence[str], proxy_socket: Path | None, processes: int) -> list[str]:
    """Return the command that starts ``argv`` inside a sandbox, connected to the model proxy.

    The sandbox needs the mounts in ``LISTENER_MOUNTS``. ``processes`` 0 means no limit.
    """
    first = [sys.executable, "-I", "-S", str(_INSIDE), str(proxy_socket or ""), str(PROXY_PORT), str(processes)]
    return [*first, *argv]


def own_process_ids(isolation: Isolation) -> frozenset[int]:
    """Return the process ids that the agent and the sandbox's own processes have inside the sandbox."""
    return frozenset({1, 2, 4} if isolation.cut else {1, 2})


LISTENER_MOUNTS = tuple(SandboxMount(Path(path)) for path in dict.fromkeys((sys.base_prefix, sys.prefix, str(_INSIDE))))


def insert_mount(own: SandboxMount, others: Sequence[SandboxMount]) -> list[SandboxMount]:
    """Return the mounts with ``own`` inserted where no mount of a parent folder hides it."""
    around = [bind for bind in others if own.path.is_relative_to(bind.path)]
    return [*around, own, *(bind for bind in others if bind not in around)]


def _unreadable_paths(folder: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():  # most of /etc
            continue
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode):
            if mode & stat.S_IXOTH:
                yield from _unreadable_paths(Path(entry.path))
            else:
                yield Path(entry.path)
        elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
            yield Path(entry.path)


@functools.cache
def _hidden_in_proc() -> list[str]:
    files = [entry for entry in os.scandir("/proc") if entry.is_file(follow_symlinks=False)]
    return [e.path for e in files if e.name in {"keys", "key-users"} or not e.stat().st_mode & stat.S_IROTH]


def find_sandbox_error(stderr: str) -> str:
    """Return the error message that bubblewrap wrote to standard error, or an empty string."""
    return stderr.strip() if stderr.startswith("bwrap: ") else ""

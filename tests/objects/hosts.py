"""Hosts that share nothing but a network: each has its own network namespace, and sees no folder of another."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Run as root of a host: hides the folders of the others, then becomes the command.
_HIDING = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder" || exit 1; done; exec "$@"'


def lacking() -> str:
    """Why no hosts can be made here; empty where they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and iproute2, for network namespaces"
    name = f"helix{secrets.token_hex(4)}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return done.stderr.strip()


@dataclass(frozen=True)
class NetHost:
    """A host: its namespace, its folder, and the folders that it must not see."""

    name: str
    folder: Path
    hidden: Sequence[Path]

    @property
    def within(self) -> list[str]:
        """The command that starts a program on it."""
        hidden = " ".join(map(str, self.hidden))
        return ["ip", "netns", "exec", self.name, "env", f"HIDDEN={hidden}", "sh", "-c", _HIDING, "sh"]

    def power_off(self) -> None:
        """Kill all its processes; its disk stays."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """The processes that run on it."""
        said = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True).stdout
        return [pid for pid in map(int, said.split()) if not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@dataclass(frozen=True)
class Network:
    """Hosts, and the address at which each of them reaches this process's servers."""

    address: str
    hosts: list[NetHost]


@contextlib.contextmanager
def network(folder: Path, names: Sequence[str]) -> Iterator[Network]:
    """Hosts with a folder each below ``folder``. Raises ``CalledProcessError``: as ``lacking``."""
    mark, net = secrets.token_hex(3), f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
    folders = {name: folder / name for name in names}
    hosts = [
        NetHost(f"hx{mark}{name}", own, [other for other in folders.values() if other != own])
        for name, own in folders.items()
    ]
    address = f"{net}.1"
    try:
        _ip("link", "add", f"hx{mark}", "type", "bridge")
        _ip("addr", "add", f"{address}/24", "dev", f"hx{mark}")
        _ip("link", "set", f"hx{mark}", "up")
        for number, host in enumerate(hosts):
            host.folder.mkdir(parents=True)
            ours, theirs = f"v{mark}{number}", f"w{mark}{number}"
            _ip("netns", "add", host.name)
            _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", host.name)
            _ip("link", "set", ours, "master", f"hx{mark}", "up")
            _ip("-n", host.name, "addr", "add", f"{net}.{number + 2}/24", "dev", theirs)
            for device in (theirs, "lo"):
                _ip("-n", host.name, "link", "set", device, "up")
        yield Network(address, hosts)
    finally:
        for host in hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                host.power_off()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"hx{mark}"], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

"""Ports of the servers that tests start."""

import random
import socket
from pathlib import Path

#: From here up to the ports that the kernel gives to outgoing connections.
_FIRST = 20_000
#: They hold this process's ports, each under a name that no other process can take meanwhile.
_held: list[socket.socket] = []


def free_port() -> int:
    """Return a loopback port that is free and that no other call returns while this process lives.

    A port chosen by the kernel may go to an outgoing connection before the server has started.
    """
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(_FIRST, above if above > _FIRST + 1_000 else 65_536)
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0helix-tests-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        _held.append(held)
        return port


def answers_on(port: int) -> bool:
    """Return True if a server takes connections on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""The address on which the relay listens, checked before anything starts."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

import click

from api_client.contract.errors import HelixError

PORTS = click.IntRange(0, 65_535)


class CannotStartError(HelixError):
    """Raised when an installation cannot start. The message says what to do."""

    code = "cannot_start"


class RelayBinding(NamedTuple):
    """The host and port on which the relay listens."""

    host: str = "127.0.0.1"
    port: int = 8765

    @property
    def url(self) -> str:
        """Return the relay's URL for clients on this machine."""
        host = "127.0.0.1" if self.host in {"", "0.0.0.0", "::"} else self.host  # noqa: S104 - not bound here
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def find_free_port(host: str, port: int) -> int:
    """Return the port if it is free on the host; for port 0, return any free port. Raises ``CannotStartError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            ways = "--port names another; 0: a free one"
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                ways = "--host must be an address of this machine"
            raise CannotStartError(f"cannot listen on {host}:{port} ({error.strerror}); {ways}") from error
        return int(probe.getsockname()[1])

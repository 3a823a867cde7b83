"""Check that an address can be listened on, before anything is started on it."""

from __future__ import annotations

import errno
import socket

from api_client.contract.errors import HelixError

#: What port 0 means, by the setting.
_ZERO = {"HELIX_WEB_PORT": "for a free one", "HELIX_FLOWER_PORT": "to do without Flower"}


class CannotStart(HelixError):
    """Something stands in the way; the message says what to do about it."""

    code = "cannot_start"


def free_port(host: str, port: int, name: str) -> int:
    """The port if it is free, or a free one for 0; ``name`` is its setting.

    Raises:
        CannotStart: somebody listens there, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            ways = f"set {name} to another, or to 0 {_ZERO[name]}"
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                ways = "HELIX_WEB_HOST must be an address of this machine"
            raise CannotStart(f"cannot listen on {host}:{port} ({error.strerror}); {ways}") from error
        return int(probe.getsockname()[1])

"""Asks the keeper of a person's yes whether a tool call may run: the side of hooks and clients. Standard library only.

The keeper (``permits``) is outside of the sandbox, at a unix socket. An agent can put another server at that path,
but not under the keeper's process number: seen from a sandbox it is 0, which no process in there has.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

#: This is the call that a person allowed; the yes is used up. / The person said no to this call.
YES, NO = "yes", "no"
#: Nothing is against the call. / It must wait for the call that a person allowed.
GO, LATER = "go", "later"
#: Seconds until an answer must be there. Longer than a store may be away, shorter than any hook may take.
_PATIENCE = 150.0
_CREDENTIALS = struct.Struct("3i")


def ask(
    keeper: Mapping[str, Any] | None,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    asks: bool,
    waits: bool = False,
    ended: bool = False,
) -> str:
    """Return the keeper's word about a call; ``GO`` where no keeper is named.

    ``asks``: the rules have a person asked about it. ``waits``: this agent makes calls at once, and reports their end.
    ``ended``: the call has ended.

    Raises:
        OSError: nobody knows; the call must not run.
    """
    if not keeper:
        return GO
    call = {"tool": tool, "arguments": arguments, "asks": asks, "waits": waits, "ended": ended}
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_PATIENCE)
        line.connect(keeper["path"])
        peer, _, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if peer != keeper["peer"]:
            raise PermissionError("another process answers in the keeper's place")
        line.sendall(json.dumps(call).encode())
        line.shutdown(socket.SHUT_WR)
        said = line.recv(16).decode("ascii", "replace")
    if said not in {YES, NO, GO, LATER}:
        raise ConnectionError("the keeper of permits did not answer")
    return said

"""Asks the approval server whether a tool call may run. Standard library only, for hooks and agent clients.

An agent could replace the server's socket, but not fake its process id: seen from a sandbox it is 0.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

#: The approved call may run once. / A person rejected the call.
YES, NO = "yes", "no"
#: No decision concerns this call. / The call must wait for the approved call.
GO, LATER = "go", "later"
#: Time limit for an answer, in seconds: longer than a store outage, shorter than a hook's time limit.
_PATIENCE = 150.0
_CREDENTIALS = struct.Struct("3i")


def ask_approval_server(
    server: Mapping[str, Any] | None,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    asks: bool,
    waits: bool = False,
    ended: bool = False,
) -> str:
    """Ask the approval server whether a tool call may run, and return its decision.

    Without a server the decision is ``GO``. ``asks``: the rules require a person's decision. ``waits``: the agent runs
    calls in parallel and reports their ends. ``ended``: the call has ended. Raises ``OSError`` if the server is
    unreachable or another process; the call must not run.
    """
    if not server:
        return GO
    call = {"tool": tool, "arguments": arguments, "asks": asks, "waits": waits, "ended": ended}
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_PATIENCE)
        line.connect(server["path"])
        peer, _, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if peer != server["peer"]:
            raise PermissionError("another process answers in the approval server's place")
        line.sendall(json.dumps(call).encode())
        line.shutdown(socket.SHUT_WR)
        said = line.recv(16).decode("ascii", "replace")
    if said not in {YES, NO, GO, LATER}:
        raise ConnectionError("the approval server did not answer")
    return said

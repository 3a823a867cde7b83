# ruff: noqa: T201 - the protocol
"""An MCP server whose one tool misbehaves: ``tool_server.py KIND``. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOL = "misbehave"
_SECONDS = {"hangs": 600, "is slow": 2}
_RESULTS: dict[str, dict[str, Any]] = {
    "returns 1 MB": {"content": [{"type": "text", "text": "x" * 2**20}]},
    "returns an error": {"content": [{"type": "text", "text": "it went wrong"}], "isError": True},
    "returns nonsense": {"content": "no list"},
    "asks for input": {"resultType": "input_required", "requestState": "s", "inputRequests": {}},
}
#: What the server does when its tool is called.
KINDS = ("dies", "changes its tools", *_SECONDS, *_RESULTS)


def main() -> None:
    """Answer the MCP requests on standard input until the input ends."""
    kind, names = sys.argv[1], [TOOL]
    for line in sys.stdin:
        request = json.loads(line)
        result: dict[str, Any] = {}
        if request["method"] == "initialize":
            about = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "kit", "version": "1"}}
            result = {"protocolVersion": request["params"]["protocolVersion"], **about}
        elif request["method"] == "tools/list":
            schema = {"type": "object", "properties": {}}
            result = {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in names]}
        elif request["method"] == "tools/call":
            if kind == "dies":
                os._exit(1)
            time.sleep(_SECONDS.get(kind, 0))
            if kind == "changes its tools":
                names[:] = ["another"]
                print('{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}')
            result = _RESULTS.get(kind, {"content": [{"type": "text", "text": "called"}]})
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()

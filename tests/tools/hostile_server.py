"""An MCP server over standard streams that misbehaves as the called tool says: ``hostile_server.py FILE [modern]``.

It writes each call into FILE before anything else, so that a test sees what reached it. Errors tell its credential.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1])
TOOLS = ["die", "hang", "big", "error", "refuse", "broken", "malformed", "garbage", "input", "elicit", "change", "slow"]
STRANGE = ["wr\u0456te", "two words", "a/b", "x" * 129, ""]
WHO = os.environ.get("WHO", "")
ME = {"name": "hostile", "version": "1"}
lock = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def call(number: int, name: str) -> None:
    with FILE.open("a") as file:
        file.write(f"{name}\n")
    if name == "die":
        sys.stdout.flush()
        os._exit(1)
    if name == "hang":
        return
    if name == "slow":
        time.sleep(0.5)
    if name == "garbage":
        print("this is no JSON", flush=True)
    if name == "change":
        TOOLS.append("added")
        say({"method": "notifications/tools/list_changed"})
    if name == "elicit":
        say({"id": 99, "method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}})
    errors = {"refuse": (-32602, f"no such argument {WHO}"), "broken": (-32603, f"internal {WHO}")}
    results: dict[str, Any] = {
        "big": text("x" * 2**20),
        "error": text(f"it went wrong {WHO}", isError=True),
        "malformed": {"content": f"no list {WHO}"},
        "input": {"resultType": "input_required", "requestState": "s", "inputRequests": {}},
    }
    if name in errors:
        code, why = errors[name]
        say({"id": number, "error": {"code": code, "message": why}})
    else:
        say({"id": number, "result": results.get(name, text(f"{name} done"))})


def answer(message: dict[str, Any]) -> None:
    number, method = message.get("id"), message.get("method")
    if number is None or method is None:
        return
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        ability = {"tools": {"listChanged": True}}
        say({"id": number, "result": {"protocolVersion": version, "capabilities": ability, "serverInfo": ME}})
    elif method == "server/discover" and "modern" in sys.argv:
        ability = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": ME}
        say({"id": number, "result": {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **ability}})
    elif method == "tools/list":
        schema = {"type": "object"}
        wrong = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}
        tools = [{"name": name, "inputSchema": schema} for name in [*TOOLS, *STRANGE]]
        pages = (
            {"tools": tools, "nextCursor": "2"},
            {"tools": [{"name": "schema", "inputSchema": schema, "outputSchema": wrong}]},
        )
        say({"id": number, "result": pages["cursor" in message.get("params", {})]})
    elif method == "tools/call":
        threading.Thread(target=call, args=(number, message["params"]["name"]), daemon=True).start()
    else:
        say({"id": number, "error": {"code": -32601, "message": "unknown"}})


for line in sys.stdin:
    answer(json.loads(line))

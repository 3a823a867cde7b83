"""An agent that makes five tool calls, ``turn:N`` in its prompt says which, and repeats those that were not made.

Every answer goes into the file of its argument before the next call, so that a campaign sees what an agent
was told that was killed later.
"""

import json
import os
import re
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

#: Calls of a turn.
CALLS = 5
HEAD = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def send(tool: str, arguments: dict[str, object]) -> str:
    params = {"name": f"counter__{tool}", "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    request = urllib.request.Request(os.environ["HELIX_TOOLS_URL"], body, HEAD)
    with urllib.request.urlopen(request, timeout=120) as answer:
        result = json.load(answer)["result"]
    said = "".join(each["text"] for each in result["content"])
    return said if result.get("isError") else "ok"


def call(tool: str, arguments: dict[str, object]) -> str:
    """Return ``ok`` or ``unknown``. What was not made is repeated until this process is stopped."""
    while True:
        try:
            said = send(tool, arguments)
        except (OSError, HTTPException, ValueError, KeyError):  # also an answer that was cut
            said = ""
        if "outcome of this call is unknown" in said:
            return "unknown"
        if said == "ok":
            return "ok"
        time.sleep(0.2)


def main() -> None:
    turn = int(re.search(r"turn:(\d+)", sys.stdin.read())[1])
    for number in range(CALLS):
        note = f"{turn}-{number}"
        writes = (turn + number) % 2 == 0
        said = call("write", {"note": note, "delay": 0.02}) if writes else call("read", {})
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{note} {'write' if writes else 'read'} {said}\n")
        print(note, said)
    print("\n<!-- STEP: done -->")


if __name__ == "__main__":
    main()

"""An agent that makes the tool calls of its prompt, a JSON list ``[[tool, arguments], ...]``, and says the results.

The message may have text around the list. It sends plain JSON-RPC, as any MCP client does over HTTP.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request


def send(method: str, **params: object) -> object:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    request = urllib.request.Request(os.environ["HELIX_TOOLS_URL"], body, head)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code} {error.read().decode()}"
    return said.get("result", said)


def send_raw(body: str, path: str = "", method: str = "POST", **headers: str) -> str:
    """Send what a test says, and return the status and the beginning of the answer."""
    head = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    url = os.environ["HELIX_TOOLS_URL"] + path
    request = urllib.request.Request(url, body.encode() if body else None, head, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return f"{answer.status} {answer.read(2_000).decode()}"
    except (urllib.error.HTTPError, OSError, ValueError) as error:
        return f"{getattr(error, 'code', type(error).__name__)}"


def main() -> None:
    prompt = sys.stdin.read()
    calls = json.loads(re.search(r"\[\[.*\]\]", prompt)[0])
    for tool, arguments in calls:
        if tool == "list":
            print("tools:", *sorted(each["name"] for each in send("tools/list")["tools"]))
            continue
        if tool == "prompt":  # what follows the list
            print("prompt:", " ".join(prompt.rpartition("]]")[2].split()))
            continue
        if tool == "raw":
            print("raw:", send_raw(**arguments).replace("\n", " "))
            continue
        result = send("tools/call", name=tool, arguments=arguments)
        texts = (
            [each["text"] for each in result["content"]]
            if isinstance(result, dict) and "content" in result
            else [result]
        )
        print(f"{tool}:", *texts)
    print("\n<!-- STEP: done -->")


if __name__ == "__main__":
    main()

"""An agent that speaks ACP as badly as it is asked to: standard library only, a real process of the tests.

``python acp_agent.py CASE``. The cases are those of ``test_acp.py``.
"""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(what: str, **more: Any) -> None:
    say({"method": "session/update", "params": {"sessionId": "s1", "update": {"sessionUpdate": what, **more}}})


def text(piece: str) -> None:
    update("agent_message_chunk", content={"type": "text", "text": piece})


def asked(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask the client, and wait for its answer."""
    say({"id": "mine", "method": method, "params": params})
    while (message := json.loads(sys.stdin.readline())).get("id") != "mine":
        pass
    return message


Params = dict[str, Any]
#: What a case does after "Hello ": the end that it gives, or None where it has ended the prompt itself.
Case = Callable[[str, object, Params], Params | None]
DONE: Params = {"stopReason": "end_turn"}


def fail(code: str, number: object, _params: Params) -> None:
    say({"id": number, "error": {"code": int(code), "message": "no", "data": {"details": "x"}}})


def leave(how: str, _number: object, _params: Params) -> None:
    os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else sys.exit(0)


def junk(_: str, _number: object, _params: Params) -> Params:
    print("not JSON\n[1]\n\n", flush=True)
    say({"method": "session/update", "params": {"sessionId": "other", "update": {"sessionUpdate": "x"}}})
    say({"method": "session/update", "params": []})
    say({"id": 99, "result": None})
    text("")
    update("agent_message_chunk", content={"type": "image", "data": "x"})
    return DONE


def ask(_: str, _number: object, _params: Params) -> Params:
    answers = [asked(method, {}) for method in ("fs/read_text_file", "terminal/create")]
    text(" ".join(str(answer["error"]["code"]) for answer in answers))
    return DONE


def permission(call: str, _number: object, _params: Params) -> Params:
    update("tool_call", toolCallId="t", title="Something", **json.loads(call))
    kinds = ("allow_always", "allow_once", "reject_once")
    options = [{"optionId": kind, "kind": kind, "name": kind} for kind in kinds]
    wanted = {"sessionId": "s1", "toolCall": {"toolCallId": "t"}, "options": options}
    text(asked("session/request_permission", wanted)["result"]["outcome"]["optionId"])
    return DONE


def ruled(command: str, _number: object, params: Params) -> Params | None:
    """Wants to run a command, which adds a line to a file; stops where it is asked to."""
    update("tool_call", toolCallId="t", title=command, kind="execute", rawInput={"command": command})
    kinds = ("allow_always", "allow_once", "reject_once")
    options = [{"optionId": kind, "kind": kind, "name": kind} for kind in kinds]
    wanted = {"sessionId": "s1", "toolCall": {"toolCallId": "t"}, "options": options}
    outcome = asked("session/request_permission", wanted)["result"]["outcome"]
    if outcome["outcome"] == "cancelled":
        if command != "deaf":
            hang("", 0, params)
            return {"stopReason": "cancelled"}
        time.sleep(600)
    if outcome["optionId"] == "allow_once":
        with Path(os.environ["RUNS"]).open("a") as runs:
            runs.write(f"{command}\n")
        if command == "then hang":
            time.sleep(600)
    text(f"{outcome['optionId']} ")
    return DONE


def several(commands: str, _number: object, params: Params) -> Params | None:
    """Asks for all its commands that did not run yet in one message; those that may run, run for a moment."""
    runs = Path(os.environ["RUNS"])
    before = runs.read_text() if runs.exists() else ""
    left = [command for command in commands.split(",") if command not in before]
    options = [{"optionId": kind, "kind": kind, "name": kind} for kind in ("allow_once", "reject_once")]
    for command in left:
        update("tool_call", toolCallId=command, title=command, kind="execute", rawInput={"command": command})
        wanted = {"sessionId": "s1", "toolCall": {"toolCallId": command}, "options": options}
        say({"id": command, "method": "session/request_permission", "params": wanted})
    answers = 0
    while answers < len(left):
        message = json.loads(sys.stdin.readline())
        if message.get("method") == "session/cancel":
            return {"stopReason": "cancelled"}
        answers += 1
        if message["result"]["outcome"].get("optionId") == "allow_once":
            time.sleep(0.2)
            with runs.open("a") as file:
                file.write(f"{message['id']}\n")
            update("tool_call_update", toolCallId=message["id"], status="completed")
    return DONE


def first(command: str, number: object, params: Params) -> Params | None:
    """Edits a file without asking, and then wants to run a command."""
    update("tool_call", toolCallId="e", title="build.sh", kind="edit", rawInput={"path": "build.sh"})
    update("tool_call_update", toolCallId="e", status="completed")
    return ruled(command, number, params)


def usage(_: str, _number: object, _params: Params) -> Params:
    update("usage_update", used=5, size=9, cost={"amount": 0.5, "currency": "USD"})
    return DONE | {"usage": {"inputTokens": 3, "outputTokens": 4}}


def late(_: str, number: object, _params: Params) -> None:
    say({"id": number, "result": DONE})
    text("late")


def linger(_: str, number: object, _params: Params) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say({"id": number, "result": DONE})
    time.sleep(600)


def think(_: str, _number: object, _params: Params) -> Params:
    for _n in range(8):
        time.sleep(0.5)
        update("agent_thought_chunk", content={"type": "text", "text": "hm"})
    return DONE


def images(_: str, _number: object, params: Params) -> Params:
    text(" ".join(part["type"] for part in params["prompt"]))
    return DONE


def hang(_: str, _number: object, _params: Params) -> Params:
    while json.loads(sys.stdin.readline()).get("method") != "session/cancel":
        pass
    Path("cancelled").touch()
    return {"stopReason": "cancelled"}


def chunks(said: str, _number: object, _params: Params) -> Params:
    for message, piece in json.loads(said):
        named = {"messageId": message} if message else {}
        update("agent_message_chunk", content={"type": "text", "text": piece}, **named)
    return DONE


def tool(status: str, _number: object, _params: Params) -> Params:
    update("tool_call", toolCallId="t", title="make", kind="execute", status="pending")
    update("tool_call_update", toolCallId="t", status=status)
    return DONE


def summary(said: str, _number: object, _params: Params) -> Params:
    """A call without tools and one with some; what the first one brought is said too."""
    ask_model(tools=[{"type": "function"}])
    return chunks(said, 0, {})


CASES: dict[str, Case] = {
    "chunks": chunks,
    "tool": tool,
    "meta": lambda meta, *_: DONE | {"_meta": json.loads(meta)},
    "summary": summary,
    "stop": lambda reason, *_: {"stopReason": json.loads(reason)},
    "error": fail,
    "leaves": leave,
    "junk": junk,
    "asks": ask,
    "permission": permission,
    "ruled": ruled,
    "several": several,
    "first": first,
    "usage": usage,
    "late": late,
    "lingers": linger,
    "thinks": think,
    "images": images,
    "hangs": hang,
}


def ask_model(**more: Any) -> None:
    """One call that ends well: without any, nothing that the agent says counts as complete."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **more}).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{os.environ['MODEL_URL']}/chat/completions", body, headers)
    ) as answer:
        answer.read()


def prompt(case: str, number: object, params: Params) -> None:
    if case != "unseen":
        ask_model()
    text("Hello ")
    name, _, value = case.partition("=")
    end = CASES[name](value, number, params) if name in CASES else DONE
    if end is not None:
        text("world")
        say({"id": number, "result": end})


def main(case: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        number, method, params = message.get("id"), message.get("method"), message.get("params", {})
        match method:
            case "initialize":
                version = 2 if case == "version" else 1
                can = {"loadSession": True, "promptCapabilities": {"image": True}}
                about = {"name": "test", "version": "0"}
                say(
                    {"id": number, "result": {"protocolVersion": version, "agentCapabilities": can, "agentInfo": about}}
                )
            case "session/new" if case == "login":
                say({"id": number, "error": {"code": -32000, "message": "log in"}})
            case "session/new":
                say({"id": number, "result": {"sessionId": "s1"}})
            case "session/load" if case == "forgets" or "FORGETS" in os.environ:
                say({"id": number, "error": {"code": -32002, "message": "unknown"}})
            case "session/load":
                text("of an earlier message")
                say({"id": number, "result": {}})
            case "session/prompt":
                prompt(case, number, params)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    main(given.read_text() if given.is_absolute() else sys.argv[1])

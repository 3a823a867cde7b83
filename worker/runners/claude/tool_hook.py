"""The Claude CLI's hook before each tool call: ``python -I -S tool_hook.py FILE``, with the call on standard input.

``FILE`` holds the rules. If anything fails here, the call is blocked. A call that needs a person's decision is
deferred: the CLI exits, and calls this hook again when its session is resumed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

try:
    from worker.runners import approval_client, tool_gate
except Exception as error:
    sys.stderr.write(f"no call can be checked: {type(error).__name__}\n")
    sys.exit(2)  # any other exit code lets the call run


def decide_call(call: Mapping[str, Any], order: Mapping[str, Any]) -> tuple[str, str]:
    """Return the decision on a tool call with its reason, or no decision to use the CLI's permissions.

    ``call`` is the CLI's description; ``order`` is the content of the rules file.
    """
    tool, given, folder = call["tool_name"], call["tool_input"], order["folder"]
    here = str(call.get("cwd") or folder)  # the CLI's shell stays in the folder of an earlier command
    rule = tool_gate.find_rule(order["rules"], tool, given, root=order["root"], folder=here)
    word = str(rule.get("do", "ask")) if rule else ""
    if word == "deny":
        return "deny", order["denied"]
    if os.path.exists(order["question"]):  # noqa: PTH110 - hooks start often
        return "deny", order["later"]
    # A subagent cannot wait for a person, and no approval applies to it.
    if word == "ask" and call.get("agent_id"):
        return "deny", order["unasked"]
    said = approval_client.ask_approval_server(order["approval_server"], tool, given, asks=word == "ask")
    if said in {approval_client.NO, approval_client.LATER}:
        return "deny", order["said" if said == approval_client.NO else "later"]
    if word != "ask":
        return ("allow" if word else ""), ""
    if said == approval_client.YES:
        return "allow", ""
    if not order["asks"]:
        return "deny", order["unasked"]
    try:
        os.close(os.open(order["question"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:  # of several calls at once, a person is asked about the first
        return "deny", order["later"]
    return "defer", ""


def main() -> int:
    """Decide on the tool call on standard input. Return 0, or 2 to block the call after a failure."""
    try:
        order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        word, why = decide_call(json.load(sys.stdin), order)
    except Exception as error:
        sys.stderr.write(f"this call could not be checked: {type(error).__name__}\n")
        return 2
    if word:
        said = {"hookEventName": "PreToolUse", "permissionDecision": word, "permissionDecisionReason": why}
        sys.stdout.write(json.dumps({"hookSpecificOutput": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

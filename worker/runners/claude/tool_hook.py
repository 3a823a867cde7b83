"""The Claude CLI's hook before each tool call: ``python -I -S tool_hook.py FILE``, the call on standard input.

``FILE`` has the rules; it is outside the folder the agent works in. Whatever goes wrong here, the call does not run. A
call that a person is asked about is deferred: the CLI ends, and asks this hook once more about the same call when its
session is resumed. It can defer one: further calls of the same message do not run, and the model hears that it is to
make them again.
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
    sys.exit(2)  # any other code lets the call run


def answer_to(call: Mapping[str, Any], order: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the hook says about a call, and why; an empty word leaves it to the CLI's own permissions.

    Args:
        call: as the CLI describes it.
        order: the content of the file.
    """
    tool, given, folder = call["tool_name"], call["tool_input"], order["folder"]
    here = str(call.get("cwd") or folder)  # its shell stays in the folder that an earlier command went to
    rule = tool_gate.ruling(order["rules"], tool, given, root=order["root"], folder=here)
    word = str(rule.get("do", "ask")) if rule else ""
    if word == "deny":
        return "deny", order["denied"]
    if os.path.exists(order["question"]):  # noqa: PTH110 - hooks start often
        return "deny", order["later"]
    # A subagent cannot wait for a person, and no yes is for it.
    if word == "ask" and call.get("agent_id"):
        return "deny", order["unasked"]
    said = approval_client.ask(order["keeper"], tool, given, asks=word == "ask")
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
    except FileExistsError:  # of several calls at once the first is asked about
        return "deny", order["later"]
    return "defer", ""


def main() -> int:
    """Answer, or block with exit code 2."""
    try:
        order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        word, why = answer_to(json.load(sys.stdin), order)
    except Exception as error:
        sys.stderr.write(f"this call could not be checked: {type(error).__name__}\n")
        return 2
    if word:
        said = {"hookEventName": "PreToolUse", "permissionDecision": word, "permissionDecisionReason": why}
        sys.stdout.write(json.dumps({"hookSpecificOutput": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

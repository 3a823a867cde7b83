"""The Claude CLI's hook before each tool call: ``python -I -S tool_hook.py FILE``, the call on standard input.

``FILE`` has the rules and the answer to a question of an earlier run; it is outside the folder the agent works in.
Whatever goes wrong here, the call does not run. A call that a person is asked about is deferred: the CLI ends, and asks
this hook once more about the same call when its session is resumed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

try:
    from worker.runners import tool_gate
except Exception as error:
    sys.stderr.write(f"no call can be checked: {type(error).__name__}\n")
    sys.exit(2)  # any other code lets the call run


def answer_to(call: Mapping[str, Any], order: Mapping[str, Any]) -> tuple[str, str]:
    """What the hook says about a call, and why; an empty word leaves it to the CLI's own permissions.

    Args:
        call: as the CLI describes it.
        order: the content of the file.
    """
    tool, given, folder = call["tool_name"], call["tool_input"], order["folder"]
    here = str(call.get("cwd") or folder)  # its shell stays in the folder that an earlier command went to
    rule = tool_gate.ruling(order["rules"], tool, given, root=order["root"], folder=here)
    word = {"run": "allow", "ask": "defer", "deny": "deny", "": ""}[rule.get("do", "ask") if rule else ""]
    if word != "defer":
        return word, order["denied"] if word == "deny" else ""
    answer = order.get("answer") or {}
    same = answer.get("call") == call.get("tool_use_id") and answer.get("digest") == tool_gate.digest(
        tool, given, folder
    )
    if same and answer["allowed"] == "no":
        return "deny", answer["said"]
    if same and tool_gate.used_up(answer["permit"]):
        return "allow", ""
    # A subagent cannot wait for a person, nor can a run that nobody would resume.
    return ("deny", order["denied"]) if call.get("agent_id") or not order["asks"] else ("defer", "")


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

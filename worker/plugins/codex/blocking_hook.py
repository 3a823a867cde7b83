"""Codex's hook around each tool call: ``python -S -P blocking_hook.py ORDERS``, with the call on standard input.

ORDERS holds the rules, the approval server and two paths: ``seen`` proves that Codex calls this hook, and ``question``
receives a call that needs a person's decision. Codex cannot suspend a call, so such a call is blocked and Codex is
interrupted. If anything fails here, the call is blocked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
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

_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_BLOCK = 2


def call_arguments(call: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a tool call's arguments, plus its working folder (if not ``folder``) and the paths that it patches."""
    given = dict(call["tool_input"])
    if call.get("cwd") and os.path.realpath(call["cwd"]) != os.path.realpath(folder):
        given["cwd"] = call["cwd"]
    if call["tool_name"] == "apply_patch":
        paths = _PATCHED.findall(str(given.get("command") or ""))
        given |= {f"path {number}" if number else "path": path.strip() for number, path in enumerate(paths)}
    return given


def find_objection(call: Mapping[str, Any], order: Mapping[str, Any]) -> str:
    """Return why the policy blocks a tool call, or an empty string if the policy allows the call."""
    question = Path(order["question"])
    tool, folder = call["tool_name"], order["folder"]
    given = call_arguments(call, folder)
    if call.get("hook_event_name") == "PostToolUse":
        approval_client.ask_approval_server(order["approval_server"], tool, given, asks=False, ended=True)
        return ""
    rule = tool_gate.find_rule(order["rules"], tool, given, root=order["root"], folder=folder)
    word = str(rule.get("do", "ask")) if rule else "run"
    if word == "deny":
        return str(order["denied"])
    if question.exists():
        return str(order["later"])
    # A subagent cannot wait for a person, and no approval applies to it.
    if word == "ask" and call.get("agent_id"):
        return str(order["unasked"])
    said = approval_client.ask_approval_server(order["approval_server"], tool, given, asks=word == "ask", waits=True)
    if said in {approval_client.NO, approval_client.LATER}:
        return str(order["said" if said == approval_client.NO else "later"])
    if word == "run" or said == approval_client.YES:
        return ""
    if not order["asks"]:
        return str(order["unasked"])
    written = question.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps({"tool": tool, "arguments": given}), encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # of several calls at once, a person is asked about the first
        os.link(written, question)
    return str(order["later"])


def interrupt_codex() -> None:
    """Interrupt the Codex process that started this process, so that Codex stops working."""
    process = os.getppid()
    while process > 1:
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith("codex"):
            os.kill(process, signal.SIGINT)
            return
        process = int(rest.split()[1])


def main() -> int:
    """Check the tool call on standard input. Return exit code 2 to block the call, 0 to allow it."""
    try:
        order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        Path(order["seen"]).touch()
        why = find_objection(json.load(sys.stdin), order)
    except Exception as error:
        sys.stderr.write(f"this call could not be checked: {type(error).__name__}\n")
        return _BLOCK
    if why:
        sys.stderr.write(why)
        if why == order["later"] and Path(order["question"]).exists():
            with contextlib.suppress(OSError, ValueError, IndexError):
                interrupt_codex()
        return _BLOCK
    return 0


if __name__ == "__main__":
    sys.exit(main())

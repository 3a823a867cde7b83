"""Codex's hook before and after each tool call: ``python -S -P blocking_hook.py ORDERS``, the call on standard input.

ORDERS has the rules, and names who keeps the answer to an earlier question, and two files: ``seen`` says that Codex
asks this hook, and ``question`` gets a call that a person is asked about. Codex knows no call that waits: such a call
is blocked, and Codex is interrupted, which ends its turn in good order. Whatever goes wrong here, the call does not
run. Only where the shell around this process is killed does it: Codex takes any end but exit code 2 for a yes.
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
    sys.exit(2)  # any other code lets the call run

_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_BLOCK = 2


def arguments_of(call: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """What the call is given, with what Codex says elsewhere: a command's place, and the paths of a patch."""
    given = dict(call["tool_input"])
    if call.get("cwd") and os.path.realpath(call["cwd"]) != os.path.realpath(folder):
        given["cwd"] = call["cwd"]
    if call["tool_name"] == "apply_patch":
        paths = _PATCHED.findall(str(given.get("command") or ""))
        given |= {f"path {number}" if number else "path": path.strip() for number, path in enumerate(paths)}
    return given


def blocked(call: Mapping[str, Any], order: Mapping[str, Any]) -> str:
    """Why a call does not run; empty: it may, if Codex's own sandbox lets it."""
    question = Path(order["question"])
    tool, folder = call["tool_name"], order["folder"]
    given = arguments_of(call, folder)
    if call.get("hook_event_name") == "PostToolUse":
        approval_client.ask(order["keeper"], tool, given, asks=False, ended=True)
        return ""
    rule = tool_gate.ruling(order["rules"], tool, given, root=order["root"], folder=folder)
    word = str(rule.get("do", "ask")) if rule else "run"
    if word == "deny":
        return str(order["denied"])
    if question.exists():
        return str(order["later"])
    # A subagent cannot wait for a person, and no yes is for it.
    if word == "ask" and call.get("agent_id"):
        return str(order["unasked"])
    said = approval_client.ask(order["keeper"], tool, given, asks=word == "ask", waits=True)
    if said in {approval_client.NO, approval_client.LATER}:
        return str(order["said" if said == approval_client.NO else "later"])
    if word == "run" or said == approval_client.YES:
        return ""
    if not order["asks"]:
        return str(order["unasked"])
    written = question.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps({"tool": tool, "arguments": given}), encoding="utf-8")
    with contextlib.suppress(FileExistsError):  # of two calls at once the first is asked about
        os.link(written, question)
    return str(order["later"])


def interrupt() -> None:
    """Have Codex end its turn; where it is not found, the model hears that it is to stop."""
    process = os.getppid()
    while process > 1:
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith("codex"):
            os.kill(process, signal.SIGINT)
            return
        process = int(rest.split()[1])


def main() -> int:
    """Block with exit code 2 and the reason on standard error, else say nothing."""
    try:
        order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        Path(order["seen"]).touch()
        why = blocked(json.load(sys.stdin), order)
    except Exception as error:
        sys.stderr.write(f"this call could not be checked: {type(error).__name__}\n")
        return _BLOCK
    if why:
        sys.stderr.write(why)
        if why == order["later"] and Path(order["question"]).exists():
            with contextlib.suppress(OSError, ValueError, IndexError):
                interrupt()
        return _BLOCK
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Enforces a person's approval of one tool call, which is used up in the turn's record before the call runs.

An approval is valid for the first call only, and only if the files named in the call are unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from api_client.contract.decision import DecisionKind
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.interruption import Interruption
from api_client.contract.tool_calls import ToolQuestion, ToolRule, WaitingCall
from worker.files.folder_trees import remove_tree
from worker.runners import tool_gate
from worker.runners.approval_client import GO, LATER, NO, YES
from worker.runners.base import Order
from worker.runners.file_digests import digest_named_files

log = structlog.get_logger()

#: Prefix and socket by which the model proxy's clean-up finds folders of dead workers.
_PREFIX, _SOCKET = "helix-net-", "alive.sock"
#: Largest call in bytes, and time limit for its arrival in seconds.
_MOST_BYTES, _TO_ARRIVE = 32 * 2**20, 5.0


def digest_call(tool: str, arguments: Mapping[str, Any], folder: str) -> str:
    """Return a hash of a tool call that is independent of the path of the run's folder."""
    said = json.dumps([tool, arguments], sort_keys=True, ensure_ascii=False)
    marked = said.replace(folder, "\0")  # JSON has no such character, so no other call gets this text
    return hashlib.sha256(marked.encode("utf-8", "surrogatepass")).hexdigest()


def find_question(order: Order, tool: str, given: Mapping[str, Any], call: str = "") -> Interruption | None:
    """Return the question to ask a person before a tool call runs, or None if no rule demands a decision.

    ``call`` is the call's id if the agent will continue with this very call instead of repeating it.
    """
    tools, folder = order.tools, str(order.directory)
    rule = tool_gate.find_rule(tools.rules, tool, given, root=str(tools.root), folder=folder) if tools else {}
    if not rule or rule.get("do", "ask") != "ask":
        return None
    asked, digest = ToolRule(**rule), digest_call(tool, given, folder)
    shown = given if call else json.loads(json.dumps(given, ensure_ascii=False).replace(folder, "."))
    waits = WaitingCall(
        call=call or digest,
        tool=tool,
        arguments=shown,
        digest=digest,
        files=digest_named_files(given, order.directory),
        wait_seconds=asked.wait_seconds,
        who=asked.who,
    )
    return waits.to_interruption(tools.secrets if tools else ())


def build_tool_orders(order: Order, *, sandboxed: bool) -> dict[str, Any]:
    """Return the JSON data with which an agent's tool hook enforces the rules of this run."""
    tools = order.tools
    if tools is None:
        return {}
    path, peer = tools.approval_socket, 0 if sandboxed else os.getpid()
    server = {"path": str(path), "peer": peer} if path else None
    words = {"denied": tools.denied, "unasked": tools.unasked, "later": tools.later, "said": tools.said}
    run = {"rules": list(tools.rules), "root": str(tools.root), "folder": str(order.directory), "asks": tools.asks}
    return run | words | {"approval_server": server}


class ApprovalServer:
    """Tells the tool hooks of a run which calls may run, according to a person's decision on one call."""

    def __init__(self, asked: Interruption, folder: Path, use_up: Callable[[], bool] | None) -> None:
        self._question, self._folder, self._use_up = ToolQuestion.from_interruption(asked), folder, use_up
        self._refused = asked.answer == DecisionKind.REJECT
        self._open = asked.answer == DecisionKind.APPROVE and use_up is not None
        self._running = False  # True while the approved call runs
        self._put_off: set[str] = set()
        self.used = False
        self._place = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.path = self._place / _SOCKET
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._serve_calls, name="permits", daemon=True).start()

    def close(self) -> None:
        """Close the server and delete its socket."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        remove_tree(self._place, ignore_errors=True)

    def answer_call(self, call: Mapping[str, Any]) -> str:
        """Return the decision on a tool call: ``YES``, ``NO``, ``LATER``, or ``GO`` if no decision applies to it."""
        tool, arguments, asks = str(call["tool"]), dict(call["arguments"]), bool(call["asks"])
        digest = digest_call(tool, arguments, str(self._folder))
        same = digest == self._question.digest
        if call["ended"]:
            self._running = self._running and not same
            return GO
        if self._refused:
            return NO if same and asks else GO
        if self._running:
            return LATER
        if not self._open or (same and not asks):
            return GO
        if asks and not same and digest not in self._put_off:
            self._put_off.add(digest)
            return LATER
        self._open = False
        if not (asks and same and self._use_approval(arguments)):
            return GO
        self.used, self._running = True, bool(call["waits"])
        return YES

    def _use_approval(self, arguments: Mapping[str, Any]) -> bool:
        pass_failpoint("permit.asked")
        if digest_named_files(arguments, self._folder) != dict(self._question.files):
            log.warning("permit.files_changed", call=self._question.digest)
            return False
        return bool(self._use_up and self._use_up())

    def _serve_calls(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line:
                try:
                    line.settimeout(_TO_ARRIVE)
                    if said := self._read_call(line):
                        line.sendall(self.answer_call(json.loads(said)).encode())
                except Exception as error:  # without an answer, no call runs
                    log.warning("permit.not_answered", error=f"{type(error).__name__}: {error}"[:200])

    def _read_call(self, line: socket.socket) -> bytes:
        said = b""
        while piece := line.recv(65_536):
            said += piece
            if len(said) > _MOST_BYTES:
                raise ValueError("a call of this size is not read")
        return said

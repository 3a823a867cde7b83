"""One turn of an agent at its real hook: rules, the calls it makes, and a person who answers.

Claude's and Codex's hooks are the real programs, started as these agents start them. Of ACP it is our client, in this
process. ``tests/claude`` and ``tests/agents`` run the agents themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.contract.interruption import Interruption
from api_client.contract.tool_calls import ToolRule
from tests.runs import order_in
from worker.plugins.acp import agent_client
from worker.plugins.acp.agent_client import AcpClient
from worker.plugins.codex import runner as codex
from worker.runners.approval_server import ApprovalServer, build_tool_orders, find_question
from worker.runners.base import Order, ToolOrders
from worker.runners.claude.hooks import TOOL_HOOK

#: Agent -> what it calls its shell, and a file that is to be written.
SHELL = {"claude": "Bash", "codex": "Bash", "acp": "execute"}
AGENTS = tuple(SHELL)
RUNS, ASKED, DENIED = "runs", "asked", "denied"
_CODEX_HOOK = Path(codex.__file__).with_name("blocking_hook.py")
_OPTIONS = [{"optionId": kind, "kind": kind, "name": kind} for kind in ("allow_once", "reject_once")]


class Stage:
    """A turn of ``agent`` in an empty ``root`` (HELIX_ROOT). Close it.

    ``used``: how often a yes was used up. ``question``: the last one, as a person is shown it.
    """

    def __init__(self, agent: str, root: Path, rules: Sequence[Mapping[str, Any]]) -> None:
        self.agent, self.root = agent, root
        self.rules = tuple(ToolRule(**rule).to_dict() for rule in rules)
        self.question: Interruption | None = None
        self.used, self.secrets = 0, list[str]()
        self.server: ApprovalServer | None = None
        self._asking: tuple[str, dict[str, Any]] | None = None
        self._numbers = 0
        self._begin()

    def close(self) -> None:
        if self.server:
            self.server.close()

    @property
    def folder(self) -> Path:
        """Where the agent works in this run."""
        return self.order.directory

    def call(self, command: str, **more: Any) -> str:
        """What becomes of a command of its shell."""
        return self.uses(SHELL[self.agent], {"command": command, **more})

    def uses(self, tool: str, arguments: Mapping[str, Any], **more: Any) -> str:
        """What becomes of a call: it runs, a person is asked (then the run is over), or it is denied."""
        self._numbers += 1
        how = {"claude": self._claude, "codex": self._codex, "acp": self._acp}[self.agent]
        said = how(tool, dict(arguments), more)
        if said == ASKED:
            self._asking = tool, dict(arguments)
        return said

    def ended(self, command: str) -> None:
        """A command that was let run has ended."""
        if self.agent == "codex":
            self._hooked("PostToolUse", SHELL["codex"], {"command": command}, {})
        elif self.agent == "acp":
            name = next(name for name, call in self._client._calls.items() if call["rawInput"]["command"] == command)
            self._client._report_tool_end({"toolCallId": name, "status": "completed"})

    def answer(self, allowed: str = "approve", *, change: Mapping[str, str] | None = None, again: bool = False) -> None:
        """A person answers the question, and another run goes on. ``change``: files that change meanwhile.

        ``again``: another delivery of the same run follows, since its worker died.
        """
        if not again:
            assert self._asking, "nobody was asked"
            tool, given = self._asking
            call = find_question(self.order, tool, given)
            assert call, "the worker finds no rule that asks"
            self.question = replace(call, delivery=self.order.delivery, answer=call.answer or allowed)
            self.used = 0
        before = self.folder
        self._begin(self.question)
        for each in before.iterdir():
            each.rename(self.folder / each.name)
        for name, content in (change or {}).items():
            (self.folder / name).write_text(content)

    def _begin(self, question: Interruption | None = None) -> None:
        self.close()
        number = self._numbers = self._numbers + 1
        self.home = self.root / f"home-{number}"
        folder = self.root / f"turn-1-1-{number}"
        self.home.mkdir()
        folder.mkdir()
        self._asking = None
        tools = ToolOrders(
            rules=self.rules,
            root=self.root,
            secrets=tuple(self.secrets),
            denied="No.",
            unasked="Nobody.",
            later="Later.",
            said="They said no.",
        )
        self.order: Order = order_in(folder, "turn-1", tools=tools, delivery=number, interruption=question)
        if question:
            self.server = ApprovalServer(question, folder, None if self.used else self._use_up)
            self.order = replace(self.order, tools=replace(tools, approval_socket=self.server.path))
        named = {"question": str(self.home / "question"), "seen": str(self.home / "seen")}
        self.told: dict[str, Any] = {**build_tool_orders(self.order, sandboxed=False), **named}
        (self.home / "orders").write_text(json.dumps(self.told))
        if self.agent == "acp":
            self._client = self._acp_client()

    def _use_up(self) -> bool:
        self.used += 1
        return self.used == 1

    def _hooked(self, event: str, tool: str, given: dict[str, Any], more: Mapping[str, Any]) -> Any:
        call = {"hook_event_name": event, "tool_name": tool, "tool_input": given, "tool_use_id": f"c{self._numbers}"}
        flags, hook = (["-I", "-S"], TOOL_HOOK) if self.agent == "claude" else (["-S", "-P"], _CODEX_HOOK)
        argv = [sys.executable, *flags, str(hook), str(self.home / "orders")]
        return subprocess.run(argv, input=json.dumps({**call, **more}), capture_output=True, text=True, check=False)

    def _claude(self, tool: str, given: dict[str, Any], more: Mapping[str, Any]) -> str:
        done = self._hooked("PreToolUse", tool, given, more)
        if done.returncode:
            return DENIED
        said = json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] if done.stdout else "allow"
        return {"allow": RUNS, "defer": ASKED, "deny": DENIED}[said]

    def _codex(self, tool: str, given: dict[str, Any], more: Mapping[str, Any]) -> str:
        before = (self.home / "question").exists()
        done = self._hooked("PreToolUse", tool, given, more)
        return RUNS if not done.returncode else ASKED if (self.home / "question").exists() > before else DENIED

    def _acp(self, tool: str, given: dict[str, Any], more: Mapping[str, Any]) -> str:
        call = {"toolCallId": f"c{self._numbers}", "kind": tool, "rawInput": given, **more}
        before, self._answered = self._client._asked, {}
        self._client._answer_permission_request(
            {"id": 1, "params": {"sessionId": "s1", "toolCall": call, "options": _OPTIONS}}
        )
        if self._client._asked and not before:
            return ASKED
        return RUNS if self._answered.get("outcome", {}).get("optionId") == "allow_once" else DENIED

    def _acp_client(self) -> AcpClient:
        """Our client with an agent that says nothing by itself."""
        given = {"argv": [sys.executable, "-c", ""], "cwd": str(self.folder), "edits": True, "allow": []}
        given |= {"rules": [dict(rule) for rule in self.rules], "root": str(self.root)}
        given |= {"asks": True, "approval_server": self.told["approval_server"]}
        client = AcpClient(given, agent_client.EventPrinter((self.home / "said").open("wb")))
        client.session = "s1"
        client._agent.wait()
        client._send_response = lambda _number, **what: self._answered.update(what["result"])  # type: ignore[method-assign]
        client._interrupt_agent = lambda: None  # type: ignore[method-assign]
        return client

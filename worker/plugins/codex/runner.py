"""Runs Codex: one ``codex exec --json`` process per run, in a fresh HOME with the session's state.

A run is complete only with exit code 0, a final ``turn.completed`` and an agent message (docs/agents.md). An ``error``
event alone means nothing, because Codex also reports reconnects this way.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, Verdict
from api_client.contract.interruption import Interruption
from api_client.contract.settings import Settings
from worker.enforcement.tool_call_log import ToolCallLog, ToolCallRecorder
from worker.plugins.programs.declaration import AgentProgram
from worker.plugins.programs.runner import OutputReader, ProgramRun, ProgramRunner
from worker.runners.approval_server import build_tool_orders, find_question
from worker.runners.base import AgentEvent
from worker.runners.event_reader import MAX_ANSWER, AnswerTooLong, find_kill_reason, json_object
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.launch import OUR_CODE, TOOLS_SERVER, TOOLS_URL
from worker.runners.sandbox.supervision import RunEnding

_HOOK = Path(__file__).with_name("blocking_hook.py")
#: Files in a run's HOME: the hook's input, the call that needs a decision, and the proof that the hook ran.
_ORDERS, _QUESTION, _SEEN = "helix-tools.json", "helix-question.json", "helix-hooked"
_SHELL = re.compile(r"\S*\b(?:ba|z)?sh -l?c ")
_ENDS = frozenset({"turn.completed", "turn.failed"})
_INTERRUPTED = 1
#: Item types of tool calls -> field that is shown.
_TOOLS = {"command_execution": "command", "mcp_tool_call": "tool", "web_search": "query", "file_change": "status"}


class CodexEventReader:
    """Reads the JSON events of a Codex process and judges how the run ended.

    ``continues``: the run continues an earlier session. ``hooked``: folder with the hook's files; None without a hook.
    """

    def __init__(self, *, continues: bool, hooked: Path | None = None) -> None:
        self._continues = continues
        self._hooked = hooked
        self._messages: list[str] = []
        self._length = 0
        self._begun = False
        self._end = ""
        self._words = ""
        self._skipped = 0
        self._tool_calls = ToolCallRecorder()
        self.session = ""
        self.usage: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        """Return the messages that Codex has written so far, separated by blank lines."""
        return "\n\n".join(self._messages)

    @property
    def tool_calls(self) -> ToolCallLog:
        """Return the log of the commands that Codex ran and the files that it changed."""
        return self._tool_calls.log

    @property
    def asked_call(self) -> Mapping[str, Any]:
        """Return the tool call that needs a person's approval, or an empty mapping."""
        try:
            found = json.loads((self._hooked / _QUESTION).read_text(encoding="utf-8")) if self._hooked else {}
        except (OSError, ValueError):
            return {}
        right = isinstance(found, dict) and isinstance(found.get("arguments"), dict)
        return found if right else {}

    @property
    def finished(self) -> bool:
        return self._end == "turn.completed"

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        return {"turn_end": self._end, "said": self._words, "skipped_lines": self._skipped}

    def take_line(self, line: bytes) -> Iterable[AgentEvent]:
        event = json_object(line)
        if event is None:
            self._skipped += 1
            return ()
        kind, item = event.get("type"), event.get("item")
        if kind == "thread.started":
            self.session = _clean_text(event.get("thread_id"))
        elif kind == "turn.started":
            self._begun, self._end = True, ""
        elif kind in _ENDS:
            self._end = str(kind)
            self._note_turn_end(event)
        elif kind == "error":
            self._words = _clean_text(event.get("message"))[:300]
        elif isinstance(item, dict):
            return self._handle_item(str(kind), item)
        return ()

    def _note_turn_end(self, event: Mapping[str, Any]) -> None:
        error, usage = event.get("error"), event.get("usage")
        self._words = _clean_text(error.get("message"))[:300] if isinstance(error, dict) else ""
        if isinstance(usage, dict):
            named = {name: usage.get(name) for name in ("input_tokens", "output_tokens")}
            self.usage = {name: value for name, value in named.items() if isinstance(value, int)}

    def _handle_item(self, kind: str, item: Mapping[str, Any]) -> Iterable[AgentEvent]:
        what = item.get("type")
        if what == "agent_message" and kind == "item.completed":
            text = _clean_text(item.get("text"))
            self._length += len(text)
            if self._length > MAX_ANSWER:
                raise AnswerTooLong
            between = "\n\n" if self._messages else ""
            self._messages.append(text)
            return (AgentEvent(kind="output", text=between + text),)
        self._note_tool(kind, item)
        reported = what == "mcp_tool_call" and item.get("server") == TOOLS_SERVER  # by the tool gateway
        if what in _TOOLS and kind == "item.started" and not reported:
            return (AgentEvent(kind="tool", text=str(what), detail=_clean_text(item.get(_TOOLS[str(what)]))[:300]),)
        return ()

    def _note_tool(self, kind: str, item: Mapping[str, Any]) -> None:
        name, status, code = str(item.get("id")), item.get("status"), item.get("exit_code")
        code = code if isinstance(code, int) else None
        ok = status == "completed" and not code if kind == "item.completed" else None
        match item.get("type"):
            case "command_execution":
                self._tool_calls.begin(name, "run", _strip_shell(_clean_text(item.get("command"))))
                output = _clean_text(item.get("aggregated_output"))
                self._tool_calls.end(name, ok=ok, ran=status != "declined", output=output, code=code)
            case "file_change":
                changes = item.get("changes")
                for number, change in enumerate(changes if isinstance(changes, list) else ()):
                    if isinstance(change, dict) and change.get("kind") != "delete":
                        self._tool_calls.begin(f"{name}:{number}", "write", _clean_text(change.get("path")))
                        self._tool_calls.end(f"{name}:{number}", ok=ok, new=change.get("kind") == "add")
            case "mcp_tool_call":
                self._tool_calls.begin(name, "other", _clean_text(item.get("tool")))
                self._tool_calls.end(name, ok=ok)

    def judge_run(self, ending: RunEnding, evidence: dict[str, Any]) -> Completion:
        code, why, kind = ending.exit.code, IncompleteReason.BROKE_OFF, None
        if self._continues and not self._begun and code not in {None, 0} and "no rollout found" in ending.stderr:
            kind, reason = ErrorKind.SESSION_LOST, "Codex does not know the session that it was to continue"
            return Completion(verdict=Verdict.ERROR, kind=kind, reason=reason, evidence=evidence)
        if self._hooked and self.tool_calls.calls and not (self._hooked / _SEEN).exists():
            reason = (
                "Codex ran tools without asking the hook that holds it to the policy's tools; use its tested version"
            )
            return Completion(verdict=Verdict.ERROR, kind=ErrorKind.CONFIG, reason=reason, evidence=evidence)
        if code in {0, _INTERRUPTED} and self.asked_call:
            reason = f"a person is asked about a call of {_clean_text(self.asked_call.get('tool'))}"[:200]
            return Completion(verdict=Verdict.ASKS, reason=reason, evidence=evidence)
        if ended := find_kill_reason(code, "Codex"):
            why, reason = ended
        elif self._end == "turn.failed":
            reason = f"Codex says that its turn failed: {self._words}"
        elif code:
            reason = f"Codex ended with exit code {code}"
        elif self._end != "turn.completed":
            reason = "the output of Codex ended without turn.completed"
        elif not self.text.strip():
            why, reason = IncompleteReason.SILENT, "Codex finished but said nothing"
        else:
            return Completion(verdict=Verdict.COMPLETE, reason="exit code 0 and turn.completed", evidence=evidence)
        return Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)


def _strip_shell(command: str) -> str:
    """Return the command inside a shell call such as ``/bin/bash -lc 'pytest -q'``. Return other commands unchanged."""
    found = _SHELL.match(command)
    try:
        inside = shlex.split(command[found.end() :]) if found else []
    except ValueError:
        inside = []
    return inside[0] if len(inside) == 1 else command


def _clean_text(value: object) -> str:
    # JSON allows lone surrogates, but UTF-8 does not.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


_CONFIG = Path(__file__).with_name("config.toml").read_text(encoding="utf-8")
_PROGRAM = AgentProgram(
    program="codex",
    environment={"CODEX_HOME": "{home}/.codex", "HELIX_AGENT_KEY": "{key}"},
    files={".codex/config.toml": _CONFIG},
    instructions=".codex/AGENTS.md",
    state=(".codex/sessions",),
    api="responses",
    version="0.169.0",
)


#: Time limit of a hook in seconds; Codex runs a call whose hook timed out.
_DAY = 86_400
#: Features that hooks cannot control: typing into a running command, and helpers, which cannot wait for a person.
_UNHOOKED_OFF = ("-c", "features.unified_exec_tty=false", "-c", "features.multi_agent=false")


class CodexRunner(ProgramRunner):
    """Runs OpenAI's Codex command line once per attempt. ``codex:gpt-5.1`` selects the model."""

    name = "codex"
    obeys_tool_rules = True

    def load_program(self, option: str, settings: Settings) -> AgentProgram:
        return _PROGRAM

    def requested_model(self, option: str) -> str:
        return option

    def create_reader(self, run: ProgramRun) -> CodexEventReader:
        return CodexEventReader(continues=bool(run.kept.session), hooked=run.home if run.order.tools else None)

    def find_interruption(self, run: ProgramRun, reader: OutputReader) -> Interruption | None:
        asks = reader.asked_call if isinstance(reader, CodexEventReader) else {}
        return find_question(run.order, _clean_text(asks.get("tool")), asks["arguments"]) if asks else None

    def build_command(self, run: ProgramRun) -> tuple[Sequence[str], Sequence[SandboxMount]]:
        """Return the command that runs Codex, and the mounts for its sandbox.

        If the policy has rules for tool calls, write them to the file that Codex's hook reads before each call.
        """
        if run.order.tools is None:
            return super().build_command(run)
        orders = run.home / _ORDERS
        named = {"question": str(run.home / _QUESTION), "seen": str(run.home / _SEEN)}
        content = build_tool_orders(run.order, sandboxed=bubblewrap.uses_sandbox(run.settings.sandbox)) | named
        orders.write_text(json.dumps(content), encoding="utf-8")
        return [run.path, *self.build_arguments(run)], [*OUR_CODE, SandboxMount(orders)]

    def build_arguments(self, run: ProgramRun) -> Sequence[str]:
        """Return Codex's command-line arguments. Inside our sandbox they turn Codex's own sandbox off."""
        sandbox = "read-only" if run.order.read_only else "workspace-write"
        if bubblewrap.uses_sandbox(run.settings.sandbox):
            sandbox = "danger-full-access"
        found = ["exec", "--json", "--skip-git-repo-check", "--sandbox", sandbox]
        if run.order.tools:
            hook = shlex.join([sys.executable, "-S", "-P", str(_HOOK), str(run.home / _ORDERS)])
            command = json.dumps(f"{hook} || exit 2")
            for event in ("PreToolUse", "PostToolUse")[: 2 if run.order.tools.approval_socket else 1]:
                found += ["-c", f'hooks.{event}=[{{hooks=[{{type="command",command={command},timeout={_DAY}}}]}}]']
            found += ["--dangerously-bypass-hook-trust", *_UNHOOKED_OFF]
        if run.order.tool_access:
            # The gateway decides about each call; without "required", the first message may go without tools.
            helix = f'{{url={json.dumps(TOOLS_URL)},required=true,default_tools_approval_mode="approve"}}'
            found += ["-c", f"mcp_servers.{TOOLS_SERVER}={helix}"]
        for image in run.images:
            found += ["--image", str(image)]
        return [*found, *(["resume", run.kept.session] if run.kept.session else []), "-"]

"""The client process of an ACP agent, which starts the agent, sends one prompt, and reports events as JSON lines.

Speaks protocol 1 over standard input and output with the standard library only. The official Python SDK (0.12.1)
rejects stop reasons that real agents send, and starts slowly.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from worker.plugins.acp.permissions import (
    apply_rules,
    call_arguments,
    choose_option,
    is_allowed,
    paths_by_name,
    tool_name,
)
from worker.runners import approval_client

PROTOCOL = 1
_MAX_LINE = 16 * 2**20
#: Seconds an agent may take to exit after its input is closed, and between SIGTERM and SIGKILL.
_LEAVE_SECONDS, _TERM_SECONDS = 5.0, 2.0
#: Seconds between signs of life while the agent only thinks.
_BEAT_SECONDS = 1.0
_LEAST_AGAIN = 20
_METHOD_NOT_FOUND, _AUTH_REQUIRED = -32601, -32000

#: Stop reasons other than ``end_turn`` -> reported event; unknown reasons are incomplete.
_STOPPED: Mapping[str, dict[str, Any]] = {
    "max_tokens": {"event": "error", "kind": "limit", "text": "the model's output was too long (max_tokens)"},
    "max_turn_requests": {"event": "error", "kind": "limit", "text": "too many model calls (max_turn_requests)"},
    "refusal": {"event": "refusal", "text": "the agent says: refusal"},
}


#: Kinds of tool calls -> kinds in the tool call log; other kinds are unknown.
_KINDS = {"edit": "write", "execute": "run", "read": "read", "search": "read", "think": "read", "fetch": "read"}
#: Remembered fields of a tool call.
_CALL = ("kind", "title", "locations", "rawInput", "rawOutput", "content", "status")
#: Characters of a command's output that are reported, from its end.
_OUTPUT = 20_000


class AgentGone(Exception):
    """Raised when the agent's output ends before the agent has answered."""


class RequestFailed(Exception):
    """Raised when the agent answers a request with an error."""

    def __init__(self, method: str, error: Mapping[str, Any]) -> None:
        data = error.get("data")
        detail = data.get("details") or data.get("message") if isinstance(data, dict) else data
        said = f"{error.get('message')}: {detail}" if isinstance(detail, str) else f"{error.get('message')}"
        super().__init__(f"{method}: {said}"[:500])
        self.code = error.get("code")


def _list_servers(can: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the run's tool gateway as an MCP server for the agent, or no server if the agent cannot use it."""
    url = os.environ.get("HELIX_TOOLS_URL")
    return [{"type": "http", "name": "helix", "url": url, "headers": []}] if url and can.get("http") else []


def _is_gateway_call(call: Mapping[str, Any], title: str = r"mcp__helix__\w+") -> bool:
    """Return True if a tool call goes to the tool gateway, which decides about its calls itself and reports them."""
    named = re.fullmatch(title, str(call.get("title") or ""), re.ASCII)
    return bool(named and tool_name(call) == "other" and os.environ.get("HELIX_TOOLS_URL"))


def find_prompt_result(message: Mapping[str, Any], asked: int) -> Mapping[str, Any] | None:
    """Return the result of the prompt (request ``asked``) from its response, or None for any other message.

    Raises ``RequestFailed``.
    """
    if message.get("id") != asked or "method" in message:
        return None
    if isinstance(error := message.get("error"), dict):
        raise RequestFailed("session/prompt", error)
    result = message.get("result")
    return result if isinstance(result, dict) else {}


class EventPrinter:
    """Prints what the agent does as JSON events for the worker, one event per line."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._beat = 0.0
        self._said = False
        self._gap = False
        self._message, self._pieces = "", list[str]()

    def print_event(self, event: str, **more: Any) -> None:
        self._out.write(json.dumps({"event": event, **more}).encode() + b"\n")
        self._out.flush()

    def print_text(self, text: str, message: str = "") -> None:
        """Print a piece of the answer. Start a new paragraph after a tool call or for a new message."""
        again = message == self._message and len(self._pieces) > 1 and text == "".join(self._pieces)
        if not text or (again and len(text) >= _LEAST_AGAIN):
            return
        if message != self._message:
            self._gap, self._message, self._pieces = self._gap or bool(self._message and message), message, []
        self._pieces.append(text)
        if self._gap and self._said and not text.startswith("\n"):
            text = f"\n\n{text}"
        self._said, self._gap = True, False
        self.print_event("output", text=text, message=message)

    def print_tool_start(self, call: Mapping[str, Any]) -> None:
        """Print an event for a tool call that starts, unless the tool gateway reports the call."""
        self._gap, self._pieces = True, []
        if _is_gateway_call(call, r"(?:mcp__helix__|helix_)\w+|\w+ \(helix MCP Server\)"):
            self.print_sign_of_life()
            return
        self.print_event("tool", text=str(call.get("kind") or "other"), detail=str(call.get("title") or "")[:300])

    def print_tool_end(self, name: str, call: Mapping[str, Any]) -> None:
        """Print an event for a finished tool call, which the worker adds to the log of tool calls."""
        given, kind = _as_mapping(call.get("rawInput")), _KINDS.get(str(call.get("kind")), "other")
        content = [part for part in _as_list(call.get("content")) if isinstance(part, dict)]
        if kind == "write":
            places = [*_as_list(call.get("locations")), *(part for part in content if part.get("type") == "diff")]
            what = [str(place["path"]) for place in places if isinstance(place, dict) and place.get("path")]
        else:
            said = given.get("command") or given.get("cmd") or call.get("title") or ""
            what = [" ".join(map(str, said)) if isinstance(said, list) else str(said).strip("`")]
        result = call.get("rawOutput")
        texts = [str(_as_mapping(part.get("content")).get("text") or "") for part in content]
        codes = [_as_mapping(result).get(name) for name in ("exitCode", "exit_code", "code")]
        self.print_event(
            "call",
            id=name,
            kind=kind,
            what=sorted(set(what)),
            ok={"completed": True, "failed": False}.get(str(call.get("status"))),
            ran=not call.get("refused"),
            code=next((code for code in codes if isinstance(code, int)), None),
            output="\n".join([*texts, result if isinstance(result, str) else json.dumps(result)])[-_OUTPUT:],
        )

    def print_sign_of_life(self) -> None:
        """Print an event that shows activity while the agent is working but not writing its answer."""
        if time.monotonic() - self._beat > _BEAT_SECONDS:
            self._beat = time.monotonic()
            self.print_event("evidence", facts={})


class AcpClient:
    """Starts an agent, sends it a prompt over the Agent Client Protocol, and reports its work."""

    def __init__(self, given: Mapping[str, Any], reports: EventPrinter) -> None:
        self._given = given
        self._reports = reports
        self._folder = Path(given["cwd"])
        self._edits = self._folder if given["edits"] else None
        self._numbers = 0
        self._calls: dict[str, dict[str, Any]] = {}
        self._logged: set[str] = set()
        self._denied: list[str] = []
        self._asked = False  # a person is asked, which ends the run
        self._allowed = ""  # the approved call, while it runs
        self._held: list[Mapping[str, Any]] = []  # permission requests that wait for its end
        self._skipped = 0
        self._cost: float | None = None
        self._lock = threading.Lock()
        (agent_stdin, stdin), (stdout, agent_stdout) = os.pipe(), os.pipe()
        self._stdin, self._stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self._agent = subprocess.Popen(
            given["argv"], stdin=agent_stdin, stdout=agent_stdout, cwd=given["cwd"], start_new_session=True
        )
        os.close(agent_stdin)
        os.close(agent_stdout)
        self.session = ""
        self._asking = False

    def run(self) -> None:
        """Connect to the agent, send the prompt, and report the agent's work until the prompt is answered.

        Raises ``AgentGone`` if the agent ended without an answer, ``RequestFailed`` if it answered with an error.
        """
        hello = self._call_method(
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
                "clientInfo": {"name": "helix-turns", "version": "1"},
            },
        )
        version = hello.get("protocolVersion")
        if version != PROTOCOL or isinstance(version, bool):
            self._reports.print_event(
                "error", kind="config", text=f"the agent speaks version {version} of ACP, not {PROTOCOL}"
            )
            return
        about = _as_mapping(hello.get("agentInfo"))
        self._reports.print_event(
            "evidence", facts={"agent": f"{about.get('name')} {about.get('version')}", "protocol": version}
        )
        can = _as_mapping(hello.get("agentCapabilities"))
        self._open_session(can)
        if mode := self._given["mode"]:
            self._call_method("session/set_mode", {"sessionId": self.session, "modeId": mode})
        try:
            end = self._send_prompt(_as_mapping(can.get("promptCapabilities")))
        except (AgentGone, RequestFailed):
            if not self._asked:
                raise
            end = {}  # the agent was asked to stop, so its ending means nothing
        self._report_end(end)

    def _open_session(self, can: Mapping[str, Any]) -> None:
        place = {"cwd": str(self._folder), "mcpServers": _list_servers(_as_mapping(can.get("mcpCapabilities")))}
        if not (known := self._given["session"]):
            self.session = str(self._call_method("session/new", place).get("sessionId") or "")
            return
        resumes = "resume" in _as_mapping(can.get("sessionCapabilities"))
        self._call_method("session/resume" if resumes else "session/load", {"sessionId": known, **place})
        self.session = known

    def _send_prompt(self, can: Mapping[str, Any]) -> Mapping[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": self._given["prompt"]}]
        if can.get("image"):
            content += [{"type": "image", **image} for image in self._given["images"]]
        self._asking = True
        asked = self._send_request("session/prompt", {"sessionId": self.session, "prompt": content})
        while (end := find_prompt_result(message := self._read_message(), asked)) is None:
            self._handle_message(message)
        return end

    def _report_end(self, end: Mapping[str, Any]) -> None:
        self.close_agent()
        self._report_usage(end)
        for name in self._calls.keys() - self._logged:
            self._reports.print_tool_end(name, self._calls[name])
        reason = end.get("stopReason")
        facts = {"stop_reason": str(reason)[:64], "agent_session": self.session, "denied": self._denied[:10]}
        if problem := self._find_contradiction(end):
            facts["ended"] = problem[:300]
        self._reports.print_event("evidence", facts={**facts, "junk_lines": self._skipped})
        if reason == "end_turn" and not problem:
            self._reports.print_event("result")
        elif reason in _STOPPED:
            self._reports.print_event(**_STOPPED[str(reason)])

    def _find_contradiction(self, end: Mapping[str, Any]) -> str:
        if error := _as_mapping(end.get("_meta")).get("error"):
            return f"the agent reports an error: {_as_mapping(error).get('message') or error}"
        running = [
            call for call in self._calls.values() if call.get("status") == "in_progress" and "refused" not in call
        ]
        return f"the agent ended while a tool of it ran: {running[0].get('title')}" if running else ""

    def _report_usage(self, end: Mapping[str, Any]) -> None:
        meta = _as_mapping(end.get("_meta"))
        used = _as_mapping(end.get("usage")) or _as_mapping(meta.get("usage"))
        count = _as_mapping(_as_mapping(meta.get("quota")).get("token_count"))
        found: dict[str, Any] = {
            "input_tokens": used.get("inputTokens", count.get("input_tokens")),
            "output_tokens": used.get("outputTokens", count.get("output_tokens")),
            "cost_usd": max(0.0, self._cost - self._given["spent"]) if self._cost else None,
        }
        named = {name: value for name, value in found.items() if isinstance(value, int | float)}
        if named:
            self._reports.print_event("usage", usage=named)

    def _handle_message(self, message: Mapping[str, Any]) -> None:
        method, params = message.get("method"), _as_mapping(message.get("params"))
        if "id" in message and method is not None:
            if method == "session/request_permission":
                self._answer_permission_request(message)
            else:
                error = {"code": _METHOD_NOT_FOUND, "message": f"{method} is not offered"}
                self._send_response(message["id"], error=error)
        elif method == "session/update" and self._asking and params.get("sessionId") == self.session:
            self._handle_update(_as_mapping(params.get("update")))

    def _handle_update(self, update: Mapping[str, Any]) -> None:
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                content = _as_mapping(update.get("content"))
                text = str(content.get("text") or "") if content.get("type") == "text" else ""
                if not any(re.fullmatch(notice, text, re.DOTALL) for notice in self._given["notices"]):
                    self._reports.print_text(text, str(update.get("messageId") or ""))
                usage = _as_mapping(_as_mapping(update.get("_meta")).get("usage"))
                if usage:
                    self._report_usage({"usage": usage})
            case "tool_call":
                call = self._merge_tool_call(update)
                self._reports.print_tool_start(call)
                self._report_tool_end(update)
            case "tool_call_update":
                self._merge_tool_call(update)
                self._report_tool_end(update)
                self._reports.print_sign_of_life()
            case "usage_update":
                cost = _as_mapping(update.get("cost"))
                if cost.get("currency") == "USD" and isinstance(cost.get("amount"), int | float):
                    self._cost = float(cost["amount"])
                self._reports.print_sign_of_life()
            case _:
                self._reports.print_sign_of_life()

    def _merge_tool_call(self, update: Mapping[str, Any]) -> dict[str, Any]:
        call = self._calls.setdefault(str(update.get("toolCallId")), {})
        call.update({name: update[name] for name in _CALL if update.get(name)})
        return call

    def _report_tool_end(self, update: Mapping[str, Any]) -> None:
        """Report a finished tool call once. Count a call that never asked for permission as executed."""
        name = str(update.get("toolCallId"))
        if update.get("status") not in {"completed", "failed"} or name in self._logged:
            return
        self._logged.add(name)
        self._reports.print_tool_end(name, self._calls[name])
        if not self._calls[name].get("refused"):
            self._ask_approval_server(self._calls[name], asks=False, ended=name == self._allowed)
        if name == self._allowed:
            self._allowed, held, self._held = "", self._held, []
            for message in held:
                self._answer_permission_request(message)

    def _answer_permission_request(self, message: Mapping[str, Any]) -> None:
        before, params = self._asked, _as_mapping(message.get("params"))
        call = self._merge_tool_call(_as_mapping(params.get("toolCall")))
        yes = params.get("sessionId") == self.session and not self._asked and self._may_run(call)
        if yes is None:
            self._held.append(message)
            return
        if not yes:
            call["refused"] = True
            self._denied.append(f"{tool_name(call)}: {call.get('title') or ''}"[:200])
        self._send_response(message["id"], result=choose_option([] if self._asked else params.get("options"), yes=yes))
        if self._asked and not before:
            self._interrupt_agent()

    def _may_run(self, call: Mapping[str, Any]) -> bool | None:
        given = self._given
        word = apply_rules(call, given["rules"], given["root"], str(self._edits or "")) if given["rules"] else ""
        allowed = is_allowed(call, given["allow"], self._edits) or _is_gateway_call(call)
        yes = word == "run" or (not word and allowed)
        if not yes and word != "ask":
            return False
        said = self._ask_approval_server(call, asks=word == "ask")
        if said == approval_client.LATER and self._allowed:
            return None
        if said == approval_client.NO or word != "ask":
            return yes and said != approval_client.NO
        if said == approval_client.YES:
            self._allowed = next(name for name, each in self._calls.items() if each is call)
        elif given["asks"]:
            self._asked = True
            self._reports.print_event("asks", tool=tool_name(call), arguments=call_arguments(call))
        return bool(said == approval_client.YES)

    def _ask_approval_server(self, call: Mapping[str, Any], *, asks: bool, ended: bool = False) -> str:
        """Ask the approval server about a tool call and return its answer. If the server fails, deny the call."""
        try:
            given, server = call_arguments(call) or paths_by_name(call), self._given["approval_server"]
            return str(
                approval_client.ask_approval_server(server, tool_name(call), given, asks=asks, waits=True, ended=ended)
            )
        except OSError:
            return str(approval_client.NO)

    def _call_method(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = self._send_request(method, params)
        while (message := self._read_message()).get("id") != asked or "method" in message:
            self._handle_message(message)
        if isinstance(error := message.get("error"), dict):
            raise RequestFailed(method, error)
        return _as_mapping(message.get("result"))

    def _send_request(self, method: str, params: Mapping[str, Any]) -> int:
        self._numbers += 1
        self._write_message({"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params})
        return self._numbers

    def _send_response(self, number: object, **what: Any) -> None:
        self._write_message({"jsonrpc": "2.0", "id": number, **what})

    def _write_message(self, message: Mapping[str, Any]) -> None:
        try:
            with self._lock:
                self._stdin.write(json.dumps(message).encode() + b"\n")
                self._stdin.flush()
        except (OSError, ValueError) as error:
            raise AgentGone from error

    def _read_message(self) -> dict[str, Any]:
        while line := self._stdout.readline(_MAX_LINE):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                return message
            self._skipped += bool(line.strip())
        raise AgentGone

    def cancel_prompt(self) -> None:
        """Ask the agent to stop working on the prompt. May be called in a signal handler."""
        note = self._cancel_notification()
        if self._asking and self._lock.acquire(blocking=False):
            with contextlib.suppress(OSError, ValueError):
                os.write(self._stdin.fileno(), json.dumps(note).encode() + b"\n")
            self._lock.release()

    def _interrupt_agent(self) -> None:
        """Ask the agent to stop, because a person must decide. Terminate the agent after a time limit."""
        timer = threading.Timer(_LEAVE_SECONDS, self._agent.terminate)
        timer.daemon = True
        timer.start()
        self._write_message(self._cancel_notification())

    def _cancel_notification(self) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": self.session}}

    def close_agent(self) -> int | None:
        """Close the agent's input, read the remaining messages, and return the agent's exit code."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        timers = [
            threading.Timer(_LEAVE_SECONDS, self._agent.terminate),
            threading.Timer(_LEAVE_SECONDS + _TERM_SECONDS, self._agent.kill),
        ]
        for timer in timers:
            timer.start()
        try:
            while True:
                message = self._read_message()
                if message.get("method") == "session/update":
                    self._handle_message(message)
        except AgentGone:
            return self._agent.wait()
        finally:
            for timer in timers:
                timer.cancel()


def main() -> int:
    """Run the agent described by the JSON on standard input, and return the exit code."""
    given = json.loads(sys.stdin.buffer.read())
    reports = EventPrinter(sys.stdout.buffer)
    try:
        client = AcpClient(given, reports)
    except OSError as error:
        reports.print_event("error", kind="config", text=f"the agent cannot be started: {error}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: client.cancel_prompt())
    try:
        client.run()
    except AgentGone:
        return _exit_like_agent(client.close_agent(), reports)
    except RequestFailed as error:
        client.close_agent()
        reports.print_event("evidence", facts={"said": str(error)})
        if error.code == _AUTH_REQUIRED:
            reports.print_event("error", kind="config", text=f"the agent wants a login: {error}")
        elif given["session"] and not client.session:
            reports.print_event("error", kind="session_lost", text=str(error))
        else:
            print(error, file=sys.stderr)  # noqa: T201 - its owner reads it
            return 1
    return 0


def _exit_like_agent(code: int | None, reports: EventPrinter) -> int:
    """Return the exit code of an agent that ended without an answer, or 1 if that code claims success.

    If a signal killed the agent, kill this process by the same signal.
    """
    reports.print_event("evidence", facts={"agent_exit": code})
    if code is not None and code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in {signal.SIGKILL, signal.SIGSTOP} else None
        os.kill(os.getpid(), -code)
    return code or 1


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


if __name__ == "__main__":
    sys.exit(main())

"""Parses the Claude CLI's standard output (stream-json) line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_client.contract.interruption import Interruption
from api_client.contract.tool_calls import TOOL_CALL, ToolQuestion
from worker.enforcement.tool_call_log import ToolCallLog, ToolCallRecorder
from worker.runners.base import AgentEvent
from worker.runners.claude.answer_text import (
    PARAGRAPH,
    SYNTHETIC,
    _get_mapping,
    clean_text,
    content_blocks,
    ends_with,
    gap_after,
    journal_tool_start,
    journal_tools,
)
from worker.runners.event_reader import MAX_ANSWER, AnswerTooLong, json_object
from worker.runners.sandbox.launch import TOOLS_SERVER

#: Tool arguments that describe a call; the first argument present is shown.
_DETAILS = ("file_path", "path", "pattern", "command", "url", "query", "description")
_DETAIL = 200
_GATEWAY_TOOLS = f"mcp__{TOOLS_SERVER}__"
_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class ClaudeStream:
    """Parses the standard output of one CLI run into events, and collects the answer.

    Attributes:
        result: the last result; empty before the first.
        error: kind of error in the CLI's last own message.
        retries: how often the CLI repeated a request to the service.
        retry_after: delay before the last repetition, in seconds.
        resets_at: when a used-up subscription is available again, in seconds since 1970; 0 if unknown.
    """

    def __init__(self, answered: Interruption | None = None) -> None:
        """Begin before the first line of output. ``answered`` is the question that a person answered before the run."""
        self.result: dict[str, Any] = {}
        self.error = ""
        self.retries = 0
        self.retry_after = 0.0
        self.resets_at = 0.0
        self.skipped = 0
        self._torn = False
        self._settled = ""
        self._open = ""
        self._gap = ""
        self._used: dict[str, int] = {}
        self._spent: dict[str, dict[str, int]] = {}
        self._message = ""
        self._tool_calls = ToolCallRecorder()
        if answered and answered.kind == TOOL_CALL:
            call = ToolQuestion.from_interruption(answered)
            journal_tool_start(call.call, call.tool, call.arguments, self._tool_calls)

    @property
    def tool_calls(self) -> ToolCallLog:
        return self._tool_calls.log

    @property
    def text(self) -> str:
        return self._settled + self._open

    @property
    def is_whole(self) -> bool:
        """Return True if the collected answer is certainly complete."""
        return bool(self.result) and not self._torn and not self.skipped

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Parse one line of output and return its events. Count and skip lines that are not JSON objects."""
        record = json_object(line)
        if record is None:
            self.skipped += 1
            return []
        if record.get("type") in {"assistant", "user"}:
            journal_tools(record, self._tool_calls)
        if record.get("parent_tool_use_id"):
            return []  # a subagent talks to the agent, not to the user
        match record.get("type"):
            case "stream_event":
                return self._handle_stream_event(_get_mapping(record, "event"))
            case "assistant":
                return self._handle_message(record)
            case "user":
                self._gap = self._gap or gap_after(record)
            case "system":
                return self._handle_system(record)
            case "rate_limit_event":
                limit = _get_mapping(record, "rate_limit_info")
                if limit.get("status") == "rejected" and isinstance(until := limit.get("resetsAt"), int | float):
                    self.resets_at = float(until)
            case "result":
                self._take_result(record)
        return []

    def report_usage(self, spent_before: float = 0.0) -> dict[str, Any]:
        """Return this run's tokens and cost, without the cost of the earlier session, ``spent_before``."""
        used = dict(self._used)
        if not self.result:
            for message in self._spent.values():
                for name, amount in message.items():
                    used[name] = used.get(name, 0) + amount
        if not used:
            return {}
        usage: dict[str, Any] = dict(used)
        total = self.result.get("total_cost_usd")
        if isinstance(total, int | float):
            usage["cost_usd"] = total - spent_before if total >= spent_before else total
        return usage

    def replace_answer(self, text: str, reason: str) -> list[AgentEvent]:
        """Replace the whole answer, and return the events that correct the text shown so far."""
        shown = self.text
        self._settled, self._open = text, ""
        if text.startswith(shown):
            return _output_events(text[len(shown) :])
        return [AgentEvent(kind="reset", text=reason), *_output_events(text)]

    def _take_result(self, record: dict[str, Any]) -> None:
        self.result = record
        self._gap = self._gap or PARAGRAPH
        self._torn = self._torn or not ends_with(self.text, clean_text(record.get("result")))
        self._add_usage(_get_mapping(record, "usage"))
        if record.get("deferred_tool_use"):
            self._tool_calls.mark_unexecuted()

    def _handle_stream_event(self, event: Mapping[str, Any]) -> list[AgentEvent]:
        match event.get("type"):
            case "message_start":
                message = _get_mapping(event, "message")
                self._message = str(message.get("id"))
                self._note_usage(_get_mapping(message, "usage"))
                return self._retract_open_text()
            case "message_delta":
                self._note_usage(_get_mapping(event, "usage"))
            case "content_block_delta":
                delta = _get_mapping(event, "delta")
                if delta.get("type") == "text_delta":
                    return self._append_text(clean_text(delta.get("text")))
        return []

    def _append_text(self, text: str) -> list[AgentEvent]:
        if text and not self._open and self._settled:
            text = self._gap + text
        self._open += text
        self._check_length()
        return _output_events(text)

    def _handle_message(self, record: Mapping[str, Any]) -> list[AgentEvent]:
        message = _get_mapping(record, "message")
        if message.get("model") == SYNTHETIC:
            self.error = str(record.get("error") or "")
            return []
        self._message = str(message.get("id"))
        self._note_usage(_get_mapping(message, "usage"))
        events: list[AgentEvent] = []
        for block in content_blocks(record):
            if block.get("type") == "text":
                events += self._settle_block(clean_text(block.get("text")))
            elif block.get("type") == "tool_use":
                name, given = str(block.get("name")), _get_mapping(block, "input")
                if name.startswith(_GATEWAY_TOOLS):
                    continue  # the tool gateway reports the call with its outcome
                detail = next((str(given[key]) for key in _DETAILS if given.get(key)), "")
                events.append(AgentEvent(kind="tool", text=name, detail=clean_text(detail)[:_DETAIL]))
        return events

    def _settle_block(self, text: str) -> list[AgentEvent]:
        if not text:
            return self._retract_open_text()
        before, shown = self._settled, self.text
        self._settled = before + (self._gap if before else "") + text
        self._open, self._gap = "", ""
        self._check_length()
        if self._settled.startswith(shown):
            return _output_events(self._settled[len(shown) :])
        return [AgentEvent(kind="reset", text="the answer was written again"), *_output_events(self._settled)]

    def _retract_open_text(self) -> list[AgentEvent]:
        if not self._open:
            return []
        self._open = ""
        return [AgentEvent(kind="reset", text="the answer broke off"), *_output_events(self._settled)]

    def _handle_system(self, record: Mapping[str, Any]) -> list[AgentEvent]:
        match record.get("subtype"):
            case "api_retry":
                self.retries += 1
                delay = record.get("retry_delay_ms")
                self.retry_after = delay / 1000 if isinstance(delay, int | float) else 0.0
                status = record.get("error_status") or record.get("error") or "no answer"
                return [
                    *self._retract_open_text(),
                    AgentEvent(kind="note", text=f"the service is asked again: {status}"),
                ]
            case "permission_denied":
                return [AgentEvent(kind="note", text=f"not allowed: {clean_text(record.get('tool_name'))}")]
        return []

    def _check_length(self) -> None:
        if len(self._settled) + len(self._open) > MAX_ANSWER:
            raise AnswerTooLong

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        self._spent.setdefault(self._message, {}).update(_read_tokens(usage))

    def _add_usage(self, usage: Mapping[str, Any]) -> None:
        for name, amount in _read_tokens(usage).items():
            self._used[name] = self._used.get(name, 0) + amount


def _read_tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    if any(isinstance(usage.get(name), int) for name in _INPUTS):
        found["input_tokens"] = sum(usage[name] for name in _INPUTS if isinstance(usage.get(name), int))
    if isinstance(usage.get("output_tokens"), int):
        found["output_tokens"] = usage["output_tokens"]
    return found


def _output_events(text: str) -> list[AgentEvent]:
    return [AgentEvent(kind="output", text=text)] if text else []

"""Collects the output of our small agents line by line, and judges whether their run is complete."""

from __future__ import annotations

import json
from typing import Any, get_args

from api_client.contract.completion import Completion as Completion
from api_client.contract.completion import ErrorKind as ErrorKind
from api_client.contract.completion import IncompleteReason as IncompleteReason
from api_client.contract.completion import ProviderFault as ProviderFault
from api_client.contract.completion import Verdict as Verdict
from worker.enforcement.tool_call_log import CallKind, ToolCallLog, ToolCallRecorder
from worker.runners.base import AgentEvent, AgentEventKind
from worker.runners.service_errors import plain_words

#: Longest answer in characters; a longer answer is a limit error.
MAX_ANSWER = 4 * 2**20

_EVENTS: dict[str, AgentEventKind] = {"output": "output", "reset": "reset", "tool": "tool", "note": "note"}


class AnswerTooLong(Exception):
    """Raised when an agent's answer is longer than ``MAX_ANSWER`` characters."""


def json_object(line: bytes) -> dict[str, Any] | None:
    """Parse a line as JSON and return the object, or None if the line is not a JSON object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def find_kill_reason(code: int | None, who: str) -> tuple[IncompleteReason, str] | None:
    """Return why an agent was killed or ended with an unknown exit code, or else None."""
    if code is None:
        return IncompleteReason.BROKE_OFF, f"nobody knows how {who} ended"
    return (IncompleteReason.KILLED, f"{who} was killed by signal {-code}") if code < 0 else None


class EventReader:
    """Reads the JSON events that an agent prints, and collects its answer, token usage, errors and tool calls."""

    def __init__(self) -> None:
        self.result = False
        self.error: dict[str, Any] = {}
        self.refusal: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.skipped = 0
        self._tool_calls = ToolCallRecorder()
        self._pieces: list[str] = []
        self._length = 0

    @property
    def text(self) -> str:
        """Return the answer so far, without pieces that the agent has withdrawn."""
        return "".join(self._pieces)

    @property
    def tool_calls(self) -> ToolCallLog | None:
        """Return the agent's reported tool calls, or None if it reported none."""
        found = self._tool_calls.log
        return found if found.calls else None

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the facts that the agent reported about its run, and the number of unreadable lines."""
        return {**self.facts, "result": self.result, "skipped_lines": self.skipped}

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line of output and return its events. Count and skip lines that are no JSON object."""
        event = json_object(line)
        if event is None:
            self.skipped += 1
            return []
        heard = self.collect_event(event)
        return [heard] if heard else []

    def collect_event(self, event: dict[str, Any]) -> AgentEvent | None:
        """Collect one event of the agent. Return an event to show to users, or None. Raises ``AnswerTooLong``."""
        kind = str(event.get("event"))
        # JSON allows lone surrogates, but UTF-8 does not.
        text = str(event.get("text", "")).encode("utf-8", "replace").decode()
        match kind:
            case "result":
                self.result = True
            case "error":
                self.error = event
            case "refusal":
                self.refusal = event
            case "usage" if isinstance(event.get("usage"), dict):
                self.usage.update(event["usage"])
            case "evidence" if isinstance(event.get("facts"), dict):
                self.facts.update(event["facts"])
            case "output":
                self._length += len(text)
                if self._length > MAX_ANSWER:
                    raise AnswerTooLong
                self._pieces.append(text)
            case "reset":
                self._pieces.clear()
                self._length = 0
            case "tool" | "note":
                pass
            case "call":
                self._journal_call(event)
            case _:
                self.skipped += 1
        shown = _EVENTS.get(kind)
        return AgentEvent(kind=shown, text=text, detail=str(event.get("detail", ""))) if shown else None

    def _journal_call(self, event: dict[str, Any]) -> None:
        ok, code = event.get("ok"), event.get("code")
        kind: CallKind = next((each for each in get_args(CallKind) if each == event.get("kind")), "other")
        for number, what in enumerate(event.get("what") or ()):
            name = f"{event.get('id')}:{number}"
            self._tool_calls.begin(name, kind, str(what))
            self._tool_calls.end(
                name,
                ok=ok if isinstance(ok, bool) else None,
                ran=event.get("ran") is not False,
                output=str(event.get("output") or ""),
                code=code if isinstance(code, int) and not isinstance(code, bool) else None,
            )


def judge_transcript(transcript: EventReader, code: int | None, evidence: dict[str, Any]) -> Completion:
    """Return the verdict on a run whose agent exited by itself (ADR-036).

    Only exit code 0, a result and a text together make a run complete.
    """
    evidence = {**evidence, "exit_code": code, **transcript.evidence}
    if transcript.error:
        return _reported_error(transcript.error, evidence)
    if refusal := transcript.refusal:
        return refusal_verdict(str(refusal.get("text", "")), evidence, filtered=refusal.get("filtered") is True)
    why = IncompleteReason.BROKE_OFF
    if ended := find_kill_reason(code, "the agent"):
        why, reason = ended
    elif code:
        reason = f"the agent ended with exit code {code}"
    elif not transcript.result:
        reason = str(evidence.get("ended") or "the agent's output ended without a result")
    elif not transcript.text.strip():
        why, reason = IncompleteReason.SILENT, "the agent finished but said nothing"
    else:
        return Completion(verdict=Verdict.COMPLETE, reason="exit code 0 and a result", evidence=evidence)
    return Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)


def refusal_verdict(said: str, evidence: dict[str, Any], *, filtered: bool) -> Completion:
    """Return the verdict on a run in which the model refused to answer or a filter stopped the answer."""
    by = "the service's filter stopped the answer" if filtered else "the model refused"
    reason = f"{by}: {said}" if said.strip() else by
    why = IncompleteReason.FILTERED if filtered else IncompleteReason.REFUSED
    return Completion(verdict=Verdict.REFUSED, why=why, reason=" ".join(reason.split())[:300], evidence=evidence)


def _reported_error(error: dict[str, Any], evidence: dict[str, Any]) -> Completion:
    kind, retry_after, fault = error.get("kind"), error.get("retry_after"), error.get("fault")
    return Completion(
        verdict=Verdict.ERROR,
        reason=plain_words(str(error.get("text") or "")) or "the agent reported an error",
        kind=ErrorKind(kind) if kind in list(ErrorKind) else ErrorKind.PERMANENT,
        retry_after=float(retry_after) if isinstance(retry_after, int | float) and 0 < retry_after < 1e9 else 0.0,
        busy=error.get("busy") is True,
        fault=ProviderFault(fault) if fault in list(ProviderFault) else None,
        evidence=evidence,
    )

"""An agent's output, line by line, and the completion gate of the scripted runners. Pure."""

from __future__ import annotations

import json
from typing import Any

from worker.runners.base import AgentEvent, AgentEventKind, Completion, ErrorKind, Verdict, Why

#: Longest answer in characters; a longer one is a limit error, not an answer.
MAX_ANSWER = 4 * 2**20

#: What is passed on as it comes.
_EVENTS: dict[str, AgentEventKind] = {"output": "output", "reset": "reset", "tool": "tool", "note": "note"}


class AnswerTooLong(Exception):
    """The answer went over ``MAX_ANSWER``."""


class Transcript:
    """Collects the agent's output: the answer so far, its usage, its error, whether it gave a result."""

    def __init__(self) -> None:
        self.result = False
        self.error: dict[str, Any] = {}
        self.refusal: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.skipped = 0
        self._pieces: list[str] = []
        self._length = 0

    @property
    def text(self) -> str:
        """The answer so far; resets are taken into account."""
        return "".join(self._pieces)

    @property
    def evidence(self) -> dict[str, Any]:
        """Return whether there was a result, and how many lines meant nothing."""
        return {"result": self.result, "skipped_lines": self.skipped}

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line; one that is not a JSON object is skipped and counted. Returns what others should hear of it.

        Raises:
            AnswerTooLong: the answer is longer than an answer may be.
        """
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self.skipped += 1
            return []
        heard = self.take(event)
        return [heard] if heard else []

    def take(self, event: dict[str, Any]) -> AgentEvent | None:
        """Take in a line of the agent; returns what to pass on.

        Raises:
            AnswerTooLong: the answer is longer than an answer may be.
        """
        kind = str(event.get("event"))
        # A lone surrogate can be written in JSON, but in no file, message or key.
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
            case _:
                self.skipped += 1
        shown = _EVENTS.get(kind)
        return AgentEvent(kind=shown, text=text, detail=str(event.get("detail", ""))) if shown else None


def judge(transcript: Transcript, code: int | None, evidence: dict[str, Any]) -> Completion:
    """The completion gate for an agent that ended by itself (ADR-036).

    Complete only when it ended with exit code 0 *and* gave a result *and* said something: the end of its output
    alone proves nothing.
    """
    evidence = {**evidence, "exit_code": code, **transcript.evidence}
    if transcript.error:
        return _reported_error(transcript.error, evidence)
    if refusal := transcript.refusal:
        return refused(str(refusal.get("text", "")), evidence, filtered=refusal.get("filtered") is True)
    why = Why.BROKE_OFF
    if code is None or code < 0:
        why = Why.KILLED if code else why
        reason = f"the agent was killed by signal {-code}" if code else "nobody knows how the agent ended"
    elif code > 0:
        reason = f"the agent ended with exit code {code}"
    elif not transcript.result:
        reason = "the agent's output ended without a result"
    elif not transcript.text.strip():
        why, reason = Why.SILENT, "the agent finished but said nothing"
    else:
        return Completion(verdict=Verdict.COMPLETE, reason="exit code 0 and a result", evidence=evidence)
    return Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)


def refused(said: str, evidence: dict[str, Any], *, filtered: bool) -> Completion:
    """The verdict where the provider says that the model refused, in its own words, or that a filter stopped it."""
    reason = f"the service's filter stopped the answer: {said}" if filtered else f"the model refused: {said}"
    why = Why.FILTERED if filtered else Why.REFUSED
    return Completion(verdict=Verdict.REFUSED, why=why, reason=" ".join(reason.split())[:300], evidence=evidence)


def _reported_error(error: dict[str, Any], evidence: dict[str, Any]) -> Completion:
    kind, retry_after = error.get("kind"), error.get("retry_after")
    return Completion(
        verdict=Verdict.ERROR,
        reason=str(error.get("text") or "the agent reported an error"),
        kind=ErrorKind(kind) if kind in list(ErrorKind) else ErrorKind.PERMANENT,
        retry_after=float(retry_after) if isinstance(retry_after, int | float) and 0 < retry_after < 1e9 else 0.0,
        busy=error.get("busy") is True,
        evidence=evidence,
    )

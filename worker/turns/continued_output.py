"""Joins the text of a run that continues an interrupted answer to the answer's earlier text."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.completion import Completion, IncompleteReason, Verdict
from worker.enforcement.answer_continuation import append_continuation
from worker.runners.base import AgentEvent, Emit, RunResult
from worker.runners.sent_input import WHOLE_SESSION

PARAGRAPH = "\n\n"
#: Output characters needed to tell whether the agent continues the text or starts again.
_ENOUGH = 600
_NO_FIT = "the agent's continuation does not fit the text before the break"


class Continuation:
    """Appends the output of a run that continues an interrupted answer to the text written before the interruption."""

    def __init__(self, so_far: str, emit: Emit) -> None:
        self._so_far = so_far
        self._emit = emit
        self._held: list[str] = []  # output kept back until its position is known
        self._length = 0
        self._seen = False  # ``_seen``: enough output was held to decide; ``_flows``: output passes through
        self._flows = False
        self._sent: list[str] = []
        self._send_text(so_far)

    def handle_event(self, event: AgentEvent) -> None:
        """Handle an agent event. Hold back output until it is known to continue the earlier text."""
        if event.kind == "reset":
            self._held.clear()
            self._length, self._seen, self._flows = 0, False, False
            self._show_text(self._so_far, event.text)
        elif event.kind != "output":
            self._emit(event)
        elif self._flows:
            self._send_text(event.text)
        else:
            self._held.append(event.text)
            self._length += len(event.text)
            if self._length >= _ENOUGH and not self._seen:
                self._seen = True
                self._decide_start()

    def _decide_start(self) -> None:
        continued = append_continuation(self._so_far, "".join(self._held), complete=False)
        if continued.fits:
            self._flows = True
            self._show_text(continued.text)

    def join_result(self, result: RunResult) -> RunResult:
        """Return the run's result with its text appended to the earlier text.

        A complete run whose text does not fit the earlier text becomes incomplete.
        """
        completion = result.completion
        continued = append_continuation(self._so_far, result.text, complete=completion.verdict is Verdict.COMPLETE)
        self._show_text(continued.text)
        added = len(continued.text) - continued.kept
        evidence = {
            **completion.evidence,
            "continuation": {"kept": continued.kept, "added": added, "fits": continued.fits},
        }
        if completion.verdict is Verdict.COMPLETE and not continued.fits:
            broken = Completion(
                verdict=Verdict.INCOMPLETE, why=IncompleteReason.BROKE_OFF, reason=_NO_FIT, evidence=evidence
            )
            return replace(result, completion=broken, text=continued.text, agent_session="")
        return replace(result, completion=replace(completion, evidence=evidence), text=continued.text)

    def _show_text(self, text: str, reason: str = "") -> None:
        """Emit the events that make the shown text equal ``text``: its missing end, or a reset and the whole text."""
        so_far = "".join(self._sent)
        if not text.startswith(so_far):
            self._emit(AgentEvent(kind="reset", text=reason))
            self._sent.clear()
            so_far = ""
        self._send_text(text[len(so_far) :])

    def _send_text(self, text: str) -> None:
        if text:
            self._sent.append(text)
            self._emit(AgentEvent(kind="output", text=text))


class ResumedOutput:
    """Puts the text that an agent wrote before asking a question in front of the resumed run's output."""

    def __init__(self, before: str, emit: Emit) -> None:
        self._before = f"{before.rstrip()}{PARAGRAPH}" if before.strip() else ""
        self._emit = emit
        self._send_earlier_text()

    def _send_earlier_text(self) -> None:
        if self._before:
            self._emit(AgentEvent(kind="output", text=self._before))

    def handle_event(self, event: AgentEvent) -> None:
        """Pass on an agent event. After a reset event, send the text from before the question again."""
        self._emit(event)
        if event.kind == "reset":
            self._send_earlier_text()

    def join_result(self, result: RunResult) -> RunResult:
        """Return the run's result with the text from before the question in front of the new text.

        An agent that could not take up its session has written the whole answer anew, so its new text stands alone.
        """
        if result.sent and result.sent.continues != WHOLE_SESSION:
            if self._before:
                self._emit(AgentEvent(kind="reset", text="the agent began anew"))
                self._emit(AgentEvent(kind="output", text=result.text))
            return result
        return replace(result, text=self._before + result.text)

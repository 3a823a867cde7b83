"""Turn a turn's events into status lines for Open WebUI, using a fixed list of sentences.

Open WebUI executes the content of some event types (``execute`` runs JavaScript), so other text only fills a gap in
our sentences, cleaned and shortened.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from api_client.contract import event_kinds
from api_client.contract import events as kinds
from api_client.contract.clock_time import clock_time
from api_client.contract.events import Event
from api_client.contract.interruption import Answerer
from api_client.interruptions.registry import question_of
from api_client.web.words import say

MAX_CHARS = 200
_REASON_CHARS = 120
_ORDINALS = (2, 3, 4, 5)

_AtWork: TypeAlias = (
    event_kinds.TurnQueued | event_kinds.AttemptStarted | event_kinds.AttemptTool | event_kinds.AttemptReset
    | event_kinds.AttemptCompleted
    | event_kinds.AttemptLost | event_kinds.GateChecked | event_kinds.VerifierStarted | event_kinds.VerifierJudged
)  # fmt: skip

#: Sentence for a kind of validation error -> error codes.
_WHYS = {
    "why_step": "MISSING_STEP_MARKER INVALID_STEP",
    "why_adr": "MISSING_ADR_FIELD EMPTY_ADR_FIELD MISSING_ADR_SECTION EMPTY_ADR_SECTION INSUFFICIENT_CRITERIA",
    "why_no_header": "MISSING_YAML_HEADER",
    "why_header": "INVALID_YAML INVALID_HEADER DUPLICATE_KEY YAML_TOO_COMPLEX",
    "why_file": "FILE_NOT_FOUND DOC_NOT_FOUND DELETE_NOT_FOUND NOT_A_FILE INVALID_PATH OUTSIDE_ROOT",
    "why_long": "ANSWER_TOO_LONG",
    "why_cut_off": "INCOMPLETE_RESPONSE",
}
_WHY = {code: why for why, codes in _WHYS.items() for code in codes.split()}
#: Phrase for a tool's action -> names of tools. Names of tools are never shown.
_TOOLS_BY_WORDS = {
    "tool_read": "Read",
    "tool_search": "Glob Grep LS",
    "tool_write": "Write Edit MultiEdit NotebookEdit",
    "tool_run": "Bash",
    "tool_web": "WebSearch WebFetch",
    "tool_agent": "Task Agent",
}
_TOOLS = {name: words for words, names in _TOOLS_BY_WORDS.items() for name in names.split()}


def status_event(text: str, *, done: bool) -> dict[str, Any]:
    """Build the event that makes Open WebUI show a status line, which is animated until ``done``."""
    return {"type": "status", "data": {"description": text[:MAX_CHARS], "done": done}}


def proof_of(end: event_kinds.TurnFinished, changes: Sequence[str], locale: str, *, checked: bool) -> str:
    """Return the last status line of a good answer: the result of its checks and the number of attempts.

    ``changes`` describes the fallback's changes.
    """
    outcome, attempts = end.outcome, end.attempts
    if outcome == "passed_by_human":
        return say("accepted_by_person", locale)
    if not checked:
        return say("done", locale)
    if outcome == "passed_by_fallback":
        text = _plain("; ".join(changes), MAX_CHARS)
        return say("checked_repaired", locale, changes=text) if text else say("checked", locale)
    if attempts < 2:
        return say("checked", locale)
    name = f"ordinal_{attempts}" if attempts in _ORDINALS else "ordinal"
    return say("checked_again", locale, number=say(name, locale, number=attempts))


def queued_behind(own: int, others: int, locale: str) -> str:
    """Return the status line of a queued turn: its place in its session, or else in the queue for an agent."""
    if own:
        return say("queued_behind_one" if own == 1 else "queued_behind", locale, position=own)
    name = {0: "queued_for_agent", 1: "queued_for_agent_one"}.get(others, "queued_for_agent_many")
    return say(name, locale, position=others)


def status_of(event: Event, locale: str, pages: str = "") -> dict[str, Any] | None:
    """Return the status event that Open WebUI shows for an event of the turn, or None if it shows none.

    Args:
        pages: address of the relay's pages, where a person can decide on a suspended turn.
    """
    text = _line(event.body, locale, pages)
    return status_event(text, done=event.final) if text else None


def _plain(text: object, limit: int = _REASON_CHARS) -> str:
    words = " ".join(str(text or "").split())
    clean = "".join(letter for letter in words if letter.isprintable() and letter not in "<>")
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def _line(body: kinds.Body, locale: str, pages: str) -> str:
    match body:
        case _ if isinstance(body, _AtWork):
            return _at_work(body, locale)
        case event_kinds.TurnRetrying(reason="transient"):
            return say("waiting", locale, seconds=int(body.delay_seconds))
        case event_kinds.TurnRetrying():
            again, allowed = body.attempt - 1, body.max_attempts - 1
            return say("retrying", locale, number=again, allowed=allowed, reason=say(_why(body), locale))
        case event_kinds.TurnFallback():
            return say("fallback", locale)
        case event_kinds.TurnEscalated():
            return say("escalated", locale) if body.stage == 1 else ""
        case event_kinds.TurnSuspended() | event_kinds.TurnDecided():
            return _handed_on(body, locale, pages)
        case event_kinds.TurnPaused() | event_kinds.TurnResumed():
            return _paused(body, locale)
        case event_kinds.TurnStopping():
            return say("stopping", locale)
        case event_kinds.TurnFinished():
            return say("done" if body.success else "not_done", locale)
        case (
            event_kinds.AttemptOutput()
            | event_kinds.AttemptNote()
            | event_kinds.AttemptAccepted()
            | event_kinds.AttemptRejected()
            | event_kinds.TurnMended()
            | event_kinds.LogReset()
            | event_kinds.Unknown()
        ):
            return ""


def _handed_on(body: event_kinds.TurnSuspended | event_kinds.TurnDecided, locale: str, pages: str) -> str:
    if isinstance(body, event_kinds.TurnDecided):
        return say("decided", locale)
    turn_id = _plain(body.turn_id)
    where = f"{pages}/turns/{turn_id}" if pages else f"turns inbox show {turn_id}"
    if not (asked := body.interruption):
        return ""
    question = question_of(asked, locale)
    below = pages and question.chat and asked.who != Answerer.OPERATOR
    return question.status if below else question.elsewhere.format(where=where)


def _paused(body: event_kinds.TurnPaused | event_kinds.TurnResumed, locale: str) -> str:
    if isinstance(body, event_kinds.TurnResumed):
        return say("resumed", locale)
    until = say("until", locale, time=clock_time(body.until, time.time())) if body.until else ""
    if body.what == "breaker":  # the reason is a service error, which is for operators
        return say("paused_by_errors", locale, until=until)
    if body.what == "limit":
        return say("paused_by_limit", locale)
    return say("paused", locale, until=until, reason=f": {_plain(body.reason)}" if body.reason else "")


def _at_work(body: _AtWork, locale: str) -> str:
    match body:
        case event_kinds.TurnQueued(position=0):
            return say("queued", locale)
        case event_kinds.TurnQueued():
            return queued_behind(body.position, 0, locale)
        case event_kinds.AttemptStarted():
            return say("started", locale)
        case event_kinds.AttemptTool():
            return say("tool", locale, what=say(_TOOLS.get(body.name, "tool_other"), locale))
        case event_kinds.AttemptReset():
            return say("reset", locale)
        case event_kinds.AttemptCompleted():
            return say("checking", locale) if body.verdict == "complete" else ""
        case event_kinds.AttemptLost():
            return say("lost", locale)
        case event_kinds.GateChecked(skipped=""):
            return say("gate_passed" if body.passed else "gate_failed", locale, gate=_plain(body.gate))
        case event_kinds.GateChecked():
            return ""
        case event_kinds.VerifierStarted():
            return say("verifying", locale)
        case event_kinds.VerifierJudged():
            return say("verified" if body.success else "not_verified", locale)


def _why(body: event_kinds.TurnRetrying) -> str:
    if body.reason == "incomplete":
        return "why_cut_off"
    found = [_WHY[code] for code in body.codes if code in _WHY]
    # A missing step marker means little to a reader; prefer any other error.
    return next((why for why in found if why != "why_step"), found[0] if found else "why_other")


Status = dict[str, Any]
_MINUTE = 60.0


class StatusLine:
    """The status line that one reader of a turn sees; methods return the event to send, or None for no change."""

    def __init__(self, locale: str, pages: str = "", *, checked: bool = True) -> None:
        self._locale, self._pages, self._checked = locale, pages, checked
        self.current: Status | None = None
        self.queued = False
        self._works: Status | None = None  # the current line if it says what the agent does
        self._since = 0.0  # Unix time at which the agent or the wait began; 0: neither
        self._minutes = 0
        self._reason = False  # the line explains why the last draft is void
        self._changes: list[str] = []

    def take(self, event: Event) -> Status | None:
        """Update the status line for an event of the turn, and return the event to send."""
        self._note(event)
        body = event.body
        if isinstance(body, event_kinds.TurnFinished) and body.success:
            text = proof_of(body, self._changes, self._locale, checked=self._checked)
            return self._show(status_event(text, done=True))
        if isinstance(body, event_kinds.AttemptStarted) and self._reason:
            return None
        status = status_of(event, self._locale, self._pages)
        if status is None:
            return None
        retrying = isinstance(body, event_kinds.TurnRetrying) and body.reason != "transient"
        self._reason = retrying or isinstance(body, event_kinds.AttemptLost | event_kinds.AttemptReset)
        self._works = status if isinstance(body, event_kinds.AttemptStarted | event_kinds.AttemptTool) else None
        return self._show(status)

    def writing(self) -> Status | None:
        """Change the status line to say that the agent writes, unless it explains why the last draft is void."""
        if self.current and self.current["data"]["done"]:
            return None
        self._works = None
        return self._done() if self._reason else self._show(status_event(say("writing", self._locale), done=True))

    def waiting(self, now: float, *, before: int = 0, others: int = 0, why: str = "") -> Status | None:
        """Update the status line after a period without events, with the time waited; ``now`` is Unix time.

        ``before`` counts earlier unfinished turns of the session, ``others`` the turns that get an agent first,
        including this turn. ``why`` says why no worker can take the turn; empty if a worker can.
        """
        minutes = int((now - self._since) / _MINUTE) if self._since else 0
        if self.queued:
            words = queued_behind(before, max(0, others - 1), self._locale)
            words = say("queued_because", self._locale, reason=why) if why else words
        elif self._works and minutes > self._minutes:
            words = self._works["data"]["description"]
        else:
            return None
        self._minutes = minutes
        text = say("since", self._locale, what=words, minutes=minutes) if minutes else words
        return self._show(status_event(text, done=False))

    def lost(self) -> Status | None:
        """Change the status line to say that the connection to the turn is lost and that the turn continues."""
        return self._show(status_event(say("lost_stream", self._locale), done=True))

    def ended(self) -> Status | None:
        """Mark the status line as done, because the stream ends before the turn."""
        return self._done()

    def _note(self, event: Event) -> None:
        match event.body:
            case event_kinds.TurnQueued() | event_kinds.TurnResumed():
                self.queued, self._since = True, event.at
            case event_kinds.TurnPaused():
                self.queued, self._since = False, 0.0
            case event_kinds.AttemptStarted():
                self.queued, self._since, self._minutes = False, event.at, 0
            case event_kinds.AttemptCompleted():
                self._since = 0.0
            case event_kinds.TurnMended(changes=changes):
                self._changes = list(changes)
            case _:
                pass

    def _done(self) -> Status | None:
        return self._show(status_event(self.current["data"]["description"], done=True)) if self.current else None

    def _show(self, status: Status) -> Status | None:
        if status == self.current:
            return None
        self.current = status
        return status

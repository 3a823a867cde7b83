"""Converts a turn's events to status lines for Open WebUI, using a fixed list of sentences.

Other text only fills a gap in a sentence, cleaned and shortened, because Open WebUI executes some event types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from api_client.contract import event_kinds
from api_client.contract import events as kinds
from api_client.contract.decision import SHOW_COMMAND
from api_client.contract.events import Event
from api_client.contract.interruption import Answerer
from api_client.interruptions.registry import show_question
from api_client.web.sentences import translate

MAX_CHARS = 200
_REASON_CHARS = 120
_ORDINALS = (2, 3, 4, 5)

_ProgressBody: TypeAlias = (
    event_kinds.TurnQueued | event_kinds.AttemptStarted | event_kinds.AttemptTool | event_kinds.AttemptReset
    | event_kinds.AttemptCompleted
    | event_kinds.AttemptLost | event_kinds.GateChecked | event_kinds.VerifierStarted | event_kinds.VerifierJudged
)  # fmt: skip

#: Sentence for a kind of validation error -> error codes.
_REASON_CODES = {
    "why_step": "MISSING_STEP_MARKER INVALID_STEP",
    "why_adr": "MISSING_ADR_FIELD EMPTY_ADR_FIELD MISSING_ADR_SECTION EMPTY_ADR_SECTION INSUFFICIENT_CRITERIA",
    "why_no_header": "MISSING_YAML_HEADER",
    "why_header": "INVALID_YAML INVALID_HEADER DUPLICATE_KEY YAML_TOO_COMPLEX",
    "why_file": "FILE_NOT_FOUND DOC_NOT_FOUND DELETE_NOT_FOUND NOT_A_FILE INVALID_PATH OUTSIDE_ROOT",
    "why_long": "ANSWER_TOO_LONG",
    "why_cut_off": "INCOMPLETE_RESPONSE",
}
_REASON_OF_CODE = {code: why for why, codes in _REASON_CODES.items() for code in codes.split()}
#: Phrase for a tool's action -> names of tools. Names of tools are never shown.
_PHRASE_TOOLS = {
    "tool_read": "Read",
    "tool_search": "Glob Grep LS",
    "tool_write": "Write Edit MultiEdit NotebookEdit",
    "tool_run": "Bash",
    "tool_web": "WebSearch WebFetch",
    "tool_agent": "Task Agent",
}
_TOOL_PHRASES = {name: words for words, names in _PHRASE_TOOLS.items() for name in names.split()}


def make_status(text: str, *, done: bool) -> dict[str, Any]:
    """Build the event that makes Open WebUI show a status line, animated until ``done``."""
    return {"type": "status", "data": {"description": text[:MAX_CHARS], "done": done}}


def format_proof(end: event_kinds.TurnFinished, changes: Sequence[str], locale: str, *, checked: bool) -> str:
    """Return the last status line for an accepted answer: the result of its checks and the number of attempts.

    ``changes`` describes the fallback's changes.
    """
    outcome, attempts = end.outcome, end.attempts
    if outcome == "passed_by_human":
        return translate("accepted_by_person", locale)
    if not checked:
        return translate("done", locale)
    if outcome == "passed_by_fallback":
        text = _clean_line("; ".join(changes), MAX_CHARS)
        return translate("checked_repaired", locale, changes=text) if text else translate("checked", locale)
    if attempts < 2:
        return translate("checked", locale)
    name = f"ordinal_{attempts}" if attempts in _ORDINALS else "ordinal"
    return translate("checked_again", locale, number=translate(name, locale, number=attempts))


def format_queue_place(own: int, others: int, locale: str) -> str:
    """Return the status line of a queued turn: its position in the session, or in the queue for an agent."""
    if own:
        return translate("queued_behind_one" if own == 1 else "queued_behind", locale, position=own)
    name = {0: "queued_for_agent", 1: "queued_for_agent_one"}.get(others, "queued_for_agent_many")
    return translate(name, locale, position=others)


def format_event(event: Event, locale: str, pages: str = "") -> dict[str, Any] | None:
    """Build the status event that Open WebUI shows for a turn's event, or return None if it shows nothing.

    ``pages`` is the address of the relay's pages, where a person can decide about a suspended turn.
    """
    text = _describe_event(event.body, locale, pages)
    return make_status(text, done=event.final) if text else None


def _clean_line(text: object, limit: int = _REASON_CHARS) -> str:
    words = " ".join(str(text or "").split())
    clean = "".join(letter for letter in words if letter.isprintable() and letter not in "<>")
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def _describe_event(body: kinds.Body, locale: str, pages: str) -> str:
    match body:
        case _ if isinstance(body, _ProgressBody):
            return _describe_progress(body, locale)
        case event_kinds.TurnRetrying(reason="transient"):
            return translate("waiting", locale, seconds=int(body.delay_seconds))
        case event_kinds.TurnRetrying():
            again, allowed = body.attempt - 1, body.max_attempts - 1
            return translate(
                "retrying", locale, number=again, allowed=allowed, reason=translate(_choose_reason(body), locale)
            )
        case event_kinds.TurnFallback():
            return translate("fallback", locale)
        case event_kinds.TurnEscalated():
            return translate("escalated", locale) if body.stage == 1 else ""
        case event_kinds.TurnSuspended() | event_kinds.TurnDecided():
            return _describe_suspension(body, locale, pages)
        case event_kinds.HoldEvent():
            return body.describe(locale, _clean_line)
        case event_kinds.TurnStopping():
            return translate("stopping", locale)
        case event_kinds.TurnFinished():
            return translate("done" if body.success else "not_done", locale)
        case (
            event_kinds.AttemptOutput()
            | event_kinds.AttemptNote()
            | event_kinds.AttemptAccepted()
            | event_kinds.AttemptRejected()
            | event_kinds.TurnMended()
            | event_kinds.LogReset()
            | event_kinds.UnknownEvent()
        ):
            return ""


def _describe_suspension(body: event_kinds.TurnSuspended | event_kinds.TurnDecided, locale: str, pages: str) -> str:
    if isinstance(body, event_kinds.TurnDecided):
        return translate("decided", locale)
    turn_id = _clean_line(body.turn_id)
    where = f"{pages}/turns/{turn_id}" if pages else f"{SHOW_COMMAND} {turn_id}"
    if not (asked := body.interruption):
        return ""
    question = show_question(asked, locale)
    below = pages and question.chat and asked.who != Answerer.OPERATOR
    return question.status if below else question.elsewhere.format(where=where)


def _describe_progress(body: _ProgressBody, locale: str) -> str:
    match body:
        case event_kinds.TurnQueued(position=0):
            return translate("queued", locale)
        case event_kinds.TurnQueued():
            return format_queue_place(body.position, 0, locale)
        case event_kinds.AttemptStarted():
            return translate("started", locale)
        case event_kinds.AttemptTool():
            return translate("tool", locale, what=translate(_TOOL_PHRASES.get(body.name, "tool_other"), locale))
        case event_kinds.AttemptReset():
            return translate("reset", locale)
        case event_kinds.AttemptCompleted():
            return translate("checking", locale) if body.verdict == "complete" else ""
        case event_kinds.AttemptLost():
            return translate("lost", locale)
        case event_kinds.GateChecked(skipped=""):
            return translate("gate_passed" if body.passed else "gate_failed", locale, gate=_clean_line(body.gate))
        case event_kinds.GateChecked():
            return ""
        case event_kinds.VerifierStarted():
            return translate("verifying", locale)
        case event_kinds.VerifierJudged():
            return translate("verified" if body.success else "not_verified", locale)


def _choose_reason(body: event_kinds.TurnRetrying) -> str:
    if body.reason == "incomplete":
        return "why_cut_off"
    found = [_REASON_OF_CODE[code] for code in body.codes if code in _REASON_OF_CODE]
    return next((why for why in found if why != "why_step"), found[0] if found else "why_other")


StatusEvent = dict[str, Any]
_MINUTE = 60.0


class StatusLine:
    """The status line that one reader of a turn sees. Methods return the event to send, or None if nothing changed."""

    def __init__(self, locale: str, pages: str = "", *, checked: bool = True) -> None:
        self._locale, self._pages_url, self._has_validators = locale, pages, checked
        self.current: StatusEvent | None = None
        self.is_queued = False
        self._activity: StatusEvent | None = None  # the current line if it says what the agent does
        self._began_at = 0.0  # Unix time at which the agent or the wait began; 0: neither
        self._minutes = 0
        self._explains_void_draft = False  # the line explains why the last draft is void
        self._changes: list[str] = []

    def update(self, event: Event) -> StatusEvent | None:
        """Update the status line for an event of the turn, and return the status event to send."""
        self._track_event(event)
        body = event.body
        if isinstance(body, event_kinds.TurnFinished) and body.success:
            text = format_proof(body, self._changes, self._locale, checked=self._has_validators)
            return self._replace_current(make_status(text, done=True))
        if isinstance(body, event_kinds.AttemptStarted) and self._explains_void_draft:
            return None
        status = format_event(event, self._locale, self._pages_url)
        if status is None:
            return None
        retrying = isinstance(body, event_kinds.TurnRetrying) and body.reason != "transient"
        self._explains_void_draft = retrying or isinstance(body, event_kinds.AttemptLost | event_kinds.AttemptReset)
        self._activity = status if isinstance(body, event_kinds.AttemptStarted | event_kinds.AttemptTool) else None
        return self._replace_current(status)

    def show_writing(self) -> StatusEvent | None:
        """Change the status line to say that the agent is writing, unless it explains why the last draft is void."""
        if self.current and self.current["data"]["done"]:
            return None
        self._activity = None
        return (
            self._finish_current()
            if self._explains_void_draft
            else self._replace_current(make_status(translate("writing", self._locale), done=True))
        )

    def show_waiting(self, now: float, *, before: int = 0, others: int = 0, why: str = "") -> StatusEvent | None:
        """Update the status line with the time waited so far, after a period without events.

        ``before`` counts earlier unfinished turns of the session, ``others`` the turns that get an agent first,
        including this turn. ``why`` says why no worker can take the turn.
        """
        minutes = int((now - self._began_at) / _MINUTE) if self._began_at else 0
        if self.is_queued:
            words = format_queue_place(before, max(0, others - 1), self._locale)
            words = translate("queued_because", self._locale, reason=why) if why else words
        elif self._activity and minutes > self._minutes:
            words = self._activity["data"]["description"]
        else:
            return None
        self._minutes = minutes
        text = translate("since", self._locale, what=words, minutes=minutes) if minutes else words
        return self._replace_current(make_status(text, done=False))

    def show_lost(self) -> StatusEvent | None:
        """Change the status line to say that the connection was lost and that the turn continues."""
        return self._replace_current(make_status(translate("lost_stream", self._locale), done=True))

    def finish_line(self) -> StatusEvent | None:
        """Mark the status line as done, because the stream ends before the turn does."""
        return self._finish_current()

    def _track_event(self, event: Event) -> None:
        match event.body:
            case event_kinds.HoldEvent() as body if any(body.BAR):
                self.is_queued, self._began_at = False, 0.0
            case event_kinds.TurnQueued() | event_kinds.HoldEvent():
                self.is_queued, self._began_at = True, event.at
            case event_kinds.AttemptStarted():
                self.is_queued, self._began_at, self._minutes = False, event.at, 0
            case event_kinds.AttemptCompleted():
                self._began_at = 0.0
            case event_kinds.TurnMended(changes=changes):
                self._changes = list(changes)
            case _:
                pass

    def _finish_current(self) -> StatusEvent | None:
        return (
            self._replace_current(make_status(self.current["data"]["description"], done=True)) if self.current else None
        )

    def _replace_current(self, status: StatusEvent) -> StatusEvent | None:
        if status == self.current:
            return None
        self.current = status
        return status

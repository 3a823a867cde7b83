"""The status line above an answer, for one reader: what stands there, and when it changes.

A line that is not done shimmers. So none is left so: text that appears ends it, and so do the turn's end and a lost
stream. Why a draft was taken back stays readable while the next one comes. Pure: events in, status events out.
"""

from __future__ import annotations

from typing import Any

from api_client.contract import event_kinds as kinds
from api_client.contract.events import Event
from api_client.web.openwebui.status import proof_of, queued_behind, status_event, status_of
from api_client.web.words import say

Status = dict[str, Any]

_MINUTE = 60.0


class Progress:
    """The line of one reader; each method returns the status event to send, None where the line stays.

    Args:
        locale: language of the line.
        pages: address of the relay's pages, or empty.
        checked: the turn has validators, so that an accepted answer was checked.
    """

    def __init__(self, locale: str, pages: str = "", *, checked: bool = True) -> None:
        self._locale, self._pages, self._checked = locale, pages, checked
        self.current: Status | None = None
        self.queued = False  # the turn waits for its session or for an agent
        self._works: Status | None = None  # the line that says what the agent does
        self._since = 0.0  # when the agent began, or the wait for it; seconds since the epoch; 0: neither
        self._minutes = 0
        self._fewest: int | None = None  # turns that waited for an agent, this one included: at the fewest
        self._reason = False  # the line says why the last draft is void
        self._changes: list[str] = []

    def take(self, event: Event) -> Status | None:
        """The line for what happened."""
        self._note(event)
        body = event.body
        if isinstance(body, kinds.TurnFinished) and body.success:
            text = proof_of(body, self._changes, self._locale, checked=self._checked)
            return self._show(status_event(text, done=True))
        if isinstance(body, kinds.AttemptStarted) and self._reason:
            return None
        status = status_of(event, self._locale, self._pages)
        if status is None:
            return None
        retrying = isinstance(body, kinds.TurnRetrying) and body.reason != "transient"
        self._reason = retrying or isinstance(body, kinds.AttemptLost | kinds.AttemptReset)
        self._works = status if isinstance(body, kinds.AttemptStarted | kinds.AttemptTool) else None
        return self._show(status)

    def writing(self) -> Status | None:
        """Text of the answer is on the page: the agent writes, unless the line says why a draft before it is void."""
        if self.current and self.current["data"]["done"]:
            return None
        self._works = None
        return self._done() if self._reason else self._show(status_event(say("writing", self._locale), done=True))

    def waiting(self, now: float, *, before: int = 0, others: int = 0, why: str = "") -> Status | None:
        """The line after a while without news.

        Args:
            now: seconds since the epoch.
            before: unfinished turns of the session before this one.
            others: turns that wait for an agent, this one included; those that came later as well.
            why: what keeps every worker from taking the turn, in the line's language; empty: nothing does.
        """
        minutes = int((now - self._since) / _MINUTE) if self._since else 0
        if self.queued:
            words = queued_behind(before, self._ahead(others), self._locale)
            words = say("queued_because", self._locale, reason=why) if why else words
        elif self._works and minutes > self._minutes:
            words = self._works["data"]["description"]
        else:
            return None
        self._minutes = minutes
        text = say("since", self._locale, what=words, minutes=minutes) if minutes else words
        return self._show(status_event(text, done=False))

    def _ahead(self, others: int) -> int:
        """How many turns are before this one, about.

        First come, first served: who came later is behind it, so never more were before it than waited at the fewest.
        """
        if others:
            self._fewest = others if self._fewest is None else min(self._fewest, others)
        return (self._fewest or 1) - 1 if others else 0

    def lost(self) -> Status | None:
        """The connection to the turn is lost, and the page with it: the turn goes on."""
        return self._show(status_event(say("lost_stream", self._locale), done=True))

    def ended(self) -> Status | None:
        """The stream ends before the turn: the line stays, and is done."""
        return self._done()

    def _note(self, event: Event) -> None:
        match event.body:
            case kinds.TurnQueued() | kinds.TurnResumed():
                self.queued, self._since, self._fewest = True, event.at, None
            case kinds.TurnPaused():
                self.queued, self._since = False, 0.0
            case kinds.AttemptStarted():
                self.queued, self._since, self._minutes = False, event.at, 0
            case kinds.AttemptCompleted():
                self._since = 0.0
            case kinds.TurnMended(changes=changes):
                self._changes = list(changes)
            case _:  # changes nothing here
                pass

    def _done(self) -> Status | None:
        return self._show(status_event(self.current["data"]["description"], done=True)) if self.current else None

    def _show(self, status: Status) -> Status | None:
        if status == self.current:
            return None
        self.current = status
        return status

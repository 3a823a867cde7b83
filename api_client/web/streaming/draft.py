"""The text a page shows while its turn goes on: grown, kept, taken back, settled.

Pure: events in, edits out. A draft is shown as it comes and taken back when it is void: the attempt is lost, begins
again, did not finish, or is rejected, or the store lost the log. One rejection takes nothing back: when only named
parts are missing (the step marker, a section, the header), the answer stays as it is and code puts the parts into it
(surgical retry), so the page keeps it too, and what the agent sends for it is not shown. The same holds while a
fallback repairs the answer. Nor is a draft taken back that broke off and that the next attempt goes on from: that
attempt tells it again, and the page takes over what is new. In the end the page holds the accepted answer as
``Reply.text`` gives it, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.contract.growing_text import VisibleText
from api_client.contract.marker import read_spans
from api_client.web.openwebui.front_matter import GrowingHeader
from api_client.web.streaming.reply import Reply


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of the page's text: it becomes ``kept`` (None: stays as it is), then ``added`` is added to it."""

    added: str = ""
    kept: str | None = None


class Draft:
    """The view of one reader's page on a turn's answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._shown: list[str] = []
        self._coming, self._header = VisibleText(), GrowingHeader()
        self._judged = False  # what is shown was judged; it may still become the answer
        self._only_parts = False  # ... and every error names a part of it that is missing: the rest of it is kept
        self._goes_on = False  # the attempt goes on from what is shown, and tells it again first
        self._again: str | None = None  # what it has sent of that; None when nothing is sent again

    @property
    def shown(self) -> str:
        """The text on the page."""
        return "".join(self._shown)

    def take(self, event: Event) -> list[Edit]:
        """Return what changes on the page because of ``event``; at most one edit."""
        match event.body:
            case event_kinds.AttemptOutput(text=text):
                return self._come(self._visible(text))
            case event_kinds.AttemptRejected(issues=issues):
                errors = [issue for issue in issues if issue.is_error]
                self._only_parts = bool(errors) and all(issue.part and not issue.file for issue in errors)
                self._judged = True
            case event_kinds.TurnRetrying(reason="rejected"):
                return [] if self._only_parts else self._take_back()
            case event_kinds.TurnRetrying(goes_on=goes_on):
                self._goes_on = goes_on and not self._judged
                return self._begin_again()
            case event_kinds.AttemptStarted() | event_kinds.AttemptReset():
                return self._begin_again()
            case event_kinds.AttemptLost(during=during) if (
                during != "validating"
            ):  # a judge that dies takes no text with it
                return self._begin_again()
            case event_kinds.TurnFinished() as end if end.success:
                return self._settle(self._reply.text(end.response, read_spans(end.markers, end.response)))
            case event_kinds.TurnFinished() | event_kinds.LogReset():
                return self._take_back()
            case _:  # says nothing about the text
                pass
        return []

    def _visible(self, text: str) -> str:
        seen = self._coming.feed(text)
        return self._header.feed(seen) if self._reply.status else seen

    def _come(self, text: str) -> list[Edit]:
        if self._judged or not text:
            return []
        if self._again is None:
            self._shown.append(text)
            return [Edit(text)]
        self._again += text
        if self.shown.startswith(self._again):
            return []
        again, self._again = self._again, None
        return self._settle(again)

    def _begin_again(self) -> list[Edit]:
        self._coming, self._header = VisibleText(), GrowingHeader()
        if self._goes_on:
            self._again = ""
            return []
        return [] if self._judged and self._only_parts else self._take_back()

    def add(self, text: str) -> list[Edit]:
        """Return what changes when something is added to the settled answer."""
        self._shown.append(text)
        return [Edit(text)] if text else []

    def _take_back(self) -> list[Edit]:
        self._coming, self._header = VisibleText(), GrowingHeader()
        self._judged, self._goes_on, self._again = False, False, None
        if not self._shown:
            return []
        self._shown.clear()
        return [Edit(kept="")]

    def _settle(self, answer: str) -> list[Edit]:
        shown, self._shown = self.shown, [answer]
        if answer.startswith(shown):
            return [Edit(answer[len(shown) :])] if answer != shown else []
        same = _same(shown, answer)
        return [Edit(answer[same:], kept=answer[:same])]


def _same(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if other.startswith(one[low:middle], low) else (low, middle - 1)
    return low

"""Track the draft that a page shows while its turn goes on, as a series of edits.

Text is shown as it arrives and removed when the draft becomes void. A draft stays if it lacks only named parts (step
marker, section, header), which code inserts (surgical retry), if a fallback repairs it, or if the next attempt
continues it. In the end the page shows the accepted answer, or nothing.
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
    """A change of the text on a page: cut the text to ``kept`` unless that is None, then append ``added``."""

    added: str = ""
    kept: str | None = None


class Draft:
    """The unfinished answer that one reader of a turn sees, updated as the agent writes."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._shown: list[str] = []
        self._coming, self._header = VisibleText(), GrowingHeader()
        self._judged = False  # the shown text was validated and may still become the answer
        self._only_parts = False  # all validation errors name a missing part: the shown text is kept
        self._goes_on = False  # the next attempt continues the shown text, and repeats it first
        self._again: str | None = None  # the part repeated so far; None if nothing is repeated

    @property
    def shown(self) -> str:
        """Return the text that the reader sees now."""
        return "".join(self._shown)

    def take(self, event: Event) -> list[Edit]:
        """Update the draft for an event of the turn, and return the edits to show, at most one."""
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
            ):  # losing a validator does not affect the text
                return self._begin_again()
            case event_kinds.TurnFinished() as end if end.success:
                return self._settle(self._reply.text(end.response, read_spans(end.markers, end.response)))
            case event_kinds.TurnFinished() | event_kinds.LogReset():
                return self._take_back()
            case _:
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
        """Append a text to the draft, and return the edit that shows it."""
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

"""Tracks the draft that a page shows while its turn continues, as a series of edits.

A draft disappears when it becomes void. It stays if only named parts (step marker, section, header) are missing, if a
fallback repairs it, or if the next attempt continues it.
"""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.contract.growing_text import VisibleText
from api_client.contract.reasoning import ReasoningFilter
from api_client.contract.step_marker import read_spans
from api_client.web.openwebui.front_matter import HeaderFencer
from api_client.web.streaming.reply import Reply


@dataclass(frozen=True, slots=True)
class DraftEdit:
    """A change of the shown text: replace it by ``replacement`` unless that is None, then append ``appended``."""

    appended: str = ""
    replacement: str | None = None


class Draft:
    """The unfinished answer that one reader of a turn sees, updated as the agent writes."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._shown: list[str] = []
        self._reasoning, self._visible_text, self._header_fencer = ReasoningFilter(), VisibleText(), HeaderFencer()
        self._is_validated = False  # the shown text was validated and may still become the answer
        self._only_parts_missing = False  # all validation errors name a missing part: the shown text is kept
        self._continues = False  # the next attempt continues the shown text, and repeats it first
        self._repeated: str | None = None  # the part repeated so far; None if nothing is repeated

    @property
    def shown(self) -> str:
        return "".join(self._shown)

    def apply_event(self, event: Event) -> list[DraftEdit]:
        """Update the draft for an event of the turn and return the edits to show."""
        match event.body:
            case event_kinds.AttemptOutput(text=text):
                return self._add_output(text)
            case event_kinds.AttemptRejected(issues=issues):
                errors = [issue for issue in issues if issue.is_error]
                self._only_parts_missing = bool(errors) and all(issue.part and not issue.file for issue in errors)
                self._is_validated = True
            case event_kinds.TurnRetrying(reason="rejected"):
                return [] if self._only_parts_missing else self._withdraw()
            case event_kinds.TurnRetrying(goes_on=goes_on):
                self._continues = goes_on and not self._is_validated
                return self._restart()
            case event_kinds.AttemptStarted() | event_kinds.AttemptReset():
                return self._restart()
            # Losing a validator does not affect the text.
            case event_kinds.AttemptLost(during=during) if during != "validating":
                return self._restart()
            case event_kinds.TurnFinished() as end if end.success:
                return self._settle_text(self._reply.format_answer(end.response, read_spans(end.markers, end.response)))
            case event_kinds.TurnFinished() | event_kinds.LogReset():
                return self._withdraw()
            case _:
                pass
        return []

    def _add_output(self, text: str) -> list[DraftEdit]:
        voids = self._reasoning.voids
        answer = self._reasoning.feed(text)
        if self._reasoning.voids == voids:
            return self._add_text(self._filter_visible(answer))
        self._visible_text, self._header_fencer = VisibleText(), HeaderFencer()
        visible, self._repeated = self._filter_visible(answer), None
        return [] if self._is_validated else self._settle_text(visible)

    def _filter_visible(self, text: str) -> str:
        seen = self._visible_text.feed(text)
        return self._header_fencer.feed(seen) if self._reply.from_open_webui else seen

    def _add_text(self, text: str) -> list[DraftEdit]:
        if self._is_validated or not text:
            return []
        if self._repeated is None:
            self._shown.append(text)
            return [DraftEdit(text)]
        self._repeated += text
        if self.shown.startswith(self._repeated):
            return []
        again, self._repeated = self._repeated, None
        return self._settle_text(again)

    def _restart(self) -> list[DraftEdit]:
        self._reasoning, self._visible_text, self._header_fencer = ReasoningFilter(), VisibleText(), HeaderFencer()
        if self._continues:
            self._repeated = ""
            return []
        return [] if self._is_validated and self._only_parts_missing else self._withdraw()

    def append_text(self, text: str) -> list[DraftEdit]:
        self._shown.append(text)
        return [DraftEdit(text)] if text else []

    def _withdraw(self) -> list[DraftEdit]:
        self._reasoning, self._visible_text, self._header_fencer = ReasoningFilter(), VisibleText(), HeaderFencer()
        self._is_validated, self._continues, self._repeated = False, False, None
        if not self._shown:
            return []
        self._shown.clear()
        return [DraftEdit(replacement="")]

    def _settle_text(self, answer: str) -> list[DraftEdit]:
        shown, self._shown = self.shown, [answer]
        if answer.startswith(shown):
            return [DraftEdit(answer[len(shown) :])] if answer != shown else []
        same = _count_common(shown, answer)
        return [DraftEdit(answer[same:], replacement=answer[:same])]


def _count_common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if other.startswith(one[low:middle], low) else (low, middle - 1)
    return low

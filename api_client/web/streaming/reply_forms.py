"""The three forms of a streamed reply: validated text only, live text, and drafts as reasoning."""

from __future__ import annotations

from typing import Any

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.web.bodies.models import StreamMode
from api_client.web.openwebui.status import StatusLine
from api_client.web.sentences import translate
from api_client.web.streaming.chunks import message_item, text_part
from api_client.web.streaming.draft import Draft, DraftEdit
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import Reply, make_ending, split_text
from api_client.web.streaming.token_usage import TurnUsage


class PageReply:
    """Converts a turn's events to the chunks of a stream that shows only the accepted answer."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        #: Status line, which only Open WebUI shows; otherwise None.
        self.status_line = (
            StatusLine(reply.locale, reply.pages_url, checked=reply.has_validators) if reply.from_open_webui else None
        )
        self._usage = TurnUsage() if reply.include_usage else None
        #: Text to append to the answer, and whether the turn was ever suspended.
        self.additions, self.was_suspended = "", False

    def append_question(self, text: str) -> list[Payload]:
        """Return the chunks that show a question to the user before the answer."""
        return [self.reply.make_chunk({"content": text})]

    def render(self, event: Event) -> list[Payload]:
        if not self._usage:
            return self._render_event(event)
        self._usage.add_event(event)
        payloads = self._render_event(event)
        if event.final and payloads and "error" not in payloads[-1]:
            payloads.append({**self.reply.make_chunk({}), "choices": [], "usage": self._usage.chat_usage()})
        return payloads

    def _render_event(self, event: Event) -> list[Payload]:
        line = self.make_status(self.status_line.update(event)) if self.status_line else []
        return [*line, *make_ending(event, self.reply, self.additions)]

    def skip_event(self, event: Event) -> None:
        """Note an event that the reader has missed. ``catch_up`` shows the combined result later."""
        if self._usage:
            self._usage.add_event(event)
        if self.status_line:
            self.status_line.update(event)

    def catch_up(self) -> list[Payload]:
        """Return the chunks that show the current state of the turn to a late reader."""
        return self.make_status(self.status_line.current) if self.status_line else []

    def make_status(self, status: dict[str, Any] | None) -> list[Payload]:
        return [{**self.reply.make_chunk({}), "event": status}] if status else []


class _DraftPage(PageReply):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._draft = Draft(reply)
        self._catching_up = False

    def _render_event(self, event: Event) -> list[Payload]:
        edits = self._draft.apply_event(event)
        if self._catching_up:
            edits = self._all_edits()
        status = self.make_status(self.status_line.update(event)) + self._end_status(edits) if self.status_line else []
        body = event.body
        if isinstance(body, event_kinds.TurnFinished) and body.success:
            edits += self._draft.append_text(self.additions)
            return [*status, *self._render_accepted(edits), self.reply.make_chunk({}, "stop")]
        return [*status, *self._render_edits(edits), *make_ending(event, self.reply)]

    def skip_event(self, event: Event) -> None:
        super().skip_event(event)
        self._end_status(self._draft.apply_event(event))
        self._catching_up = True

    def catch_up(self) -> list[Payload]:
        return [*super().catch_up(), *self._render_edits(self._all_edits())]

    def _end_status(self, edits: list[DraftEdit]) -> list[Payload]:
        return (
            self.make_status(self.status_line.show_writing())
            if self.status_line and any(edit.appended for edit in edits)
            else []
        )

    def _all_edits(self) -> list[DraftEdit]:
        self._catching_up = False
        return [DraftEdit(self._draft.shown)] if self._draft.shown else []

    def _render_edits(self, edits: list[DraftEdit]) -> list[Payload]:
        raise NotImplementedError

    def _render_accepted(self, edits: list[DraftEdit]) -> list[Payload]:
        raise NotImplementedError


class LivePage(_DraftPage):
    """Converts a turn's events to a stream that shows text as it arrives, and removes the text of discarded attempts.

    A frame ``response.output_text.done`` of the Responses API sets the whole text, so it can also shorten it.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._is_open = False
        self._item_position = {"output_index": 0, "item_id": f"msg_{reply.turn_id}", "content_index": 0}

    def append_question(self, text: str) -> list[Payload]:
        """Return the chunks that append a question to the shown draft."""
        return self._render_edits(self._draft.append_text(text))

    def _render_edits(self, edits: list[DraftEdit]) -> list[Payload]:
        frames: list[Payload] = []
        for edit in edits:
            if not self._is_open:
                self._is_open = True
                frames += [
                    {"type": "response.output_item.added", "output_index": 0, "item": self._make_item("in_progress")},
                    {"type": "response.content_part.added", **self._item_position, "part": text_part("")},
                ]
            if edit.replacement is not None:
                frames.append({"type": "response.output_text.done", **self._item_position, "text": edit.replacement})
            for piece in split_text(edit.appended):
                frames.append({"type": "response.output_text.delta", **self._item_position, "delta": piece})
        return frames

    def _render_accepted(self, edits: list[DraftEdit]) -> list[Payload]:
        frames = self._render_edits(edits)
        if not self._is_open:
            return frames
        item = self._make_item("completed", text_part(self._draft.shown))
        response = {"id": f"resp_{self.reply.turn_id}", "status": "completed", "output": [item]}
        return [
            *frames,
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]

    def _make_item(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return message_item(self.reply.turn_id, status, *content)


class ReasoningPage(_DraftPage):
    """Converts a turn's events to a stream that shows drafts as reasoning, then the accepted answer."""

    def _render_edits(self, edits: list[DraftEdit]) -> list[Payload]:
        void = f"\n\n{translate('void', self.reply.locale)}\n\n"
        texts = [edit.appended if edit.replacement is None else void + edit.appended for edit in edits]
        return [self.reply.make_chunk({"reasoning_content": piece}) for text in texts for piece in split_text(text)]

    def _render_accepted(self, edits: list[DraftEdit]) -> list[Payload]:
        return [self.reply.make_chunk({"content": piece}) for piece in split_text(self._draft.shown)]


def make_page_reply(reply: Reply, mode: StreamMode) -> PageReply:
    """Create the object that converts a turn's events to chunks in the given stream mode."""
    kind = {StreamMode.LIVE: LivePage, StreamMode.DRAFT: ReasoningPage, StreamMode.VALIDATED: PageReply}[mode]
    return kind(reply)

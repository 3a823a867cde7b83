"""The three forms of a streamed reply: validated text only, live text, and drafts as reasoning.

``page_of`` creates the form for a stream mode.
"""

from __future__ import annotations

from typing import Any

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.web.bodies.models import StreamMode
from api_client.web.openwebui.status import StatusLine
from api_client.web.streaming.chunks import message_item, text_part
from api_client.web.streaming.draft import Draft, Edit
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import Reply, ended, pieces
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.words import say


class PageReply:
    """Converts the events of a turn to the chunks of a stream that shows only the accepted answer."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        #: Status line, which only Open WebUI shows.
        self.progress = StatusLine(reply.locale, reply.pages, checked=reply.checked) if reply.status else None
        self._spent = TurnUsage() if reply.include_usage else None
        #: Text to append to an answer; True if the turn was suspended.
        self.attached, self.asked = "", False

    def ask(self, text: str) -> list[Payload]:
        """Return the chunks that show a question to the user, before the answer."""
        return [self.reply.chunk({"content": text})]

    def render(self, event: Event) -> list[Payload]:
        """Return the chunks to send for an event of the turn."""
        if not self._spent:
            return self._rendered(event)
        self._spent.take(event)
        body = event.body
        passed = isinstance(body, event_kinds.TurnFinished) and body.success
        used = [{**self.reply.chunk({}), "choices": [], "usage": self._spent.usage()}] if passed else []
        return [*self._rendered(event), *used]

    def _rendered(self, event: Event) -> list[Payload]:
        line = self.line(self.progress.take(event)) if self.progress else []
        return [*line, *ended(event, self.reply, self.attached)]

    def skip(self, event: Event) -> None:
        """Take note of an event that the reader has missed; ``catch_up`` later shows the combined result."""
        if self._spent:
            self._spent.take(event)
        if self.progress:
            self.progress.take(event)

    def catch_up(self) -> list[Payload]:
        """Return the chunks that show the present state of the turn to a reader who came late."""
        return self.line(self.progress.current) if self.progress else []

    def line(self, status: dict[str, Any] | None) -> list[Payload]:
        """Return a chunk that carries a status event, or an empty list if there is no status event."""
        return [{**self.reply.chunk({}), "event": status}] if status else []


class _DraftPage(PageReply):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._draft = Draft(reply)
        self._behind = False

    def _rendered(self, event: Event) -> list[Payload]:
        edits = self._draft.take(event)
        if self._behind:
            edits = self._all()
        status = self.line(self.progress.take(event)) + self._writing(edits) if self.progress else []
        body = event.body
        if isinstance(body, event_kinds.TurnFinished) and body.success:
            edits += self._draft.add(self.attached)
            return [*status, *self._accepted(edits), self.reply.chunk({}, "stop")]
        return [*status, *self._changed(edits), *ended(event, self.reply)]

    def skip(self, event: Event) -> None:
        super().skip(event)
        self._writing(self._draft.take(event))
        self._behind = True

    def catch_up(self) -> list[Payload]:
        return [*super().catch_up(), *self._changed(self._all())]

    def _writing(self, edits: list[Edit]) -> list[Payload]:
        return self.line(self.progress.writing()) if self.progress and any(edit.added for edit in edits) else []

    def _all(self) -> list[Edit]:
        self._behind = False
        return [Edit(self._draft.shown)] if self._draft.shown else []

    def _changed(self, edits: list[Edit]) -> list[Payload]:
        raise NotImplementedError

    def _accepted(self, edits: list[Edit]) -> list[Payload]:
        raise NotImplementedError


class LivePage(_DraftPage):
    """Converts the events of a turn to a stream that shows text as it arrives and removes void text.

    Open WebUI accepts frames of the Responses API between chunks; ``response.output_text.done`` sets the whole text,
    so it can also shorten the text.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._open = False
        self._place = {"output_index": 0, "item_id": f"msg_{reply.turn_id}", "content_index": 0}

    def ask(self, text: str) -> list[Payload]:
        """Return the chunks that append a question to the shown draft."""
        return self._changed(self._draft.add(text))

    def _changed(self, edits: list[Edit]) -> list[Payload]:
        frames: list[Payload] = []
        for edit in edits:
            if not self._open:
                self._open = True
                frames += [
                    {"type": "response.output_item.added", "output_index": 0, "item": self._item("in_progress")},
                    {"type": "response.content_part.added", **self._place, "part": text_part("")},
                ]
            if edit.kept is not None:
                frames.append({"type": "response.output_text.done", **self._place, "text": edit.kept})
            for piece in pieces(edit.added):
                frames.append({"type": "response.output_text.delta", **self._place, "delta": piece})
        return frames

    def _accepted(self, edits: list[Edit]) -> list[Payload]:
        frames = self._changed(edits)
        if not self._open:
            return frames
        item = self._item("completed", text_part(self._draft.shown))
        response = {"id": f"resp_{self.reply.turn_id}", "status": "completed", "output": [item]}
        return [
            *frames,
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]

    def _item(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return message_item(self.reply.turn_id, status, *content)


class ReasoningPage(_DraftPage):
    """Converts the events of a turn to a stream that shows drafts as reasoning, and then the accepted answer."""

    def _changed(self, edits: list[Edit]) -> list[Payload]:
        void = f"\n\n{say('void', self.reply.locale)}\n\n"
        texts = [edit.added if edit.kept is None else void + edit.added for edit in edits]
        return [self.reply.chunk({"reasoning_content": piece}) for text in texts for piece in pieces(text)]

    def _accepted(self, edits: list[Edit]) -> list[Payload]:
        return [self.reply.chunk({"content": piece}) for piece in pieces(self._draft.shown)]


def page_of(reply: Reply, mode: StreamMode) -> PageReply:
    """Create the object that converts a turn's events to the stream of the given mode."""
    kind = {StreamMode.LIVE: LivePage, StreamMode.DRAFT: ReasoningPage, StreamMode.VALIDATED: PageReply}[mode]
    return kind(reply)

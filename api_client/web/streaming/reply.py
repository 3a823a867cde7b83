"""From a turn's events to what a chat client receives. Pure: an event in, payloads out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from api_client.contract import events as kinds
from api_client.contract.events import Event
from api_client.contract.issues import TurnError, ValidationIssue
from api_client.contract.marker import Span, VisibleText, answer_text, page_text, read_spans
from api_client.contract.messages import ENDED, GIVEN_UP, ending, line_of
from api_client.web.bodies.models import StreamMode
from api_client.web.errors import NO_RETRY, ApiError, say
from api_client.web.openwebui.answers import GrowingHeader, failure_text, fenced
from api_client.web.openwebui.status import StatusLine

Payload: TypeAlias = dict[str, Any]

# The use of a turn over all its attempts, in the shapes of OpenAI's two APIs. Pure: events in, numbers out. Tokens and
# money are what the agents reported; zeros where they reported nothing, as the scripted agent does. A client that asked
# for one answer pays for all that it took: rejected, lost and repeated runs are in, and named.


class TurnUsage:
    """Adds up what the runs of a turn used. Takes the turn's events from the first; none may be left out."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._input = self._output = self._attempts = self._failed = self._last = 0
        self._cost = 0.0

    def take(self, event: Event) -> None:
        """Add what an event tells. A rejected answer's tokens were for nothing, and so are those of a broken run."""
        match event.body:
            case kinds.AttemptCompleted() as body:
                self._last = self._add(body.usage or {})
                self._failed += 0 if body.verdict in {"complete", "asks"} else self._last
            case kinds.AttemptLost() as body:
                self._failed += self._add(body.usage or {})
            case kinds.AttemptRejected():
                self._failed, self._last = self._failed + self._last, 0
            case kinds.AttemptStarted(attempt=number):
                self._attempts = max(self._attempts, number)
            case kinds.LogReset():
                self._begin()
            case _:  # used nothing
                pass

    def _add(self, used: Mapping[str, Any]) -> int:
        """Add the tokens of one run; returns how many."""
        given, made = int(used.get("input_tokens", 0)), int(used.get("output_tokens", 0))
        self._input += given
        self._output += made
        self._cost += float(used.get("cost_usd", 0.0))
        return given + made

    def _details(self) -> Payload:
        """Figures beyond OpenAI's fields: runs, tokens of runs whose answer was not accepted, US dollars."""
        return {"attempts": self._attempts, "failed_tokens": self._failed, "cost_usd": round(self._cost, 6)}

    def usage(self) -> Payload:
        """For a chat completion."""
        return {
            "prompt_tokens": self._input,
            "completion_tokens": self._output,
            "total_tokens": self._input + self._output,
            "turn_details": self._details(),
        }

    def response_usage(self) -> Payload:
        """For a response."""
        return {
            "input_tokens": self._input,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._input + self._output,
            "turn_details": self._details(),
        }


# The objects of OpenAI's chat completions, and those they share with responses, as far as the relay sends them; the
# client of OpenAI's own types reads them all (tests/unit/web/test_reply.py).

COMPLETION_PREFIX = "chatcmpl-"
OWNED_BY = "helix-turns"


def model_object(model: str, *, vision: bool) -> Payload:
    """One entry of ``/v1/models``; ``vision``: it reads images. To Open WebUI: no built-in tools, nobody calls them."""
    info = {"meta": {"capabilities": {"builtin_tools": False, "vision": vision, "usage": True}}}
    return {"id": model, "object": "model", "created": 0, "owned_by": OWNED_BY, "info": info}


def text_part(text: str) -> dict[str, Any]:
    """A text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": []}


def message_item(turn_id: str, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """The turn's answer as an output item."""
    return {"type": "message", "id": f"msg_{turn_id}", "role": "assistant", "status": status, "content": list(parts)}


#: First line of the message of a turn that failed validation (ADR-038, "stream_enforcement_error").
ENFORCEMENT_ERROR = "[ENFORCEMENT ERROR]"
#: Characters of answer in one chunk.
PIECE = 1_000
#: The HTTP status a turn's end has when nothing was sent yet, and the type of its error object.
_ENDS = {
    "failed": (422, "enforcement_error"),
    "incomplete": (502, "server_error"),
    "refused": (422, "refusal"),
    "error": (502, "server_error"),
    "cancelled": (409, "cancelled_error"),
    "expired": (504, "timeout_error"),
    "dead": (502, "server_error"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to one request: what all its parts have in common.

    Attributes:
        created: seconds since the epoch.
        status: the caller is Open WebUI: tell the progress as status events inside chunks, show no marker at all.
        checked: the turn has validators, so that an accepted answer was checked.
        pages: address of the relay's pages, without a slash at its end; empty when nobody said it.
        include_usage: a stream ends with a chunk that says what was used.
        owner, session_id: the turn's. question: the hash that a repeat of it has too, or empty.
        page: a page of Open WebUI shows it as it comes.
    """

    turn_id: str
    model: str
    created: int
    locale: str
    status: bool = False
    checked: bool = True
    pages: str = ""
    include_usage: bool = False
    owner: str = ""
    session_id: str = ""
    question: str = ""
    page: bool = False

    def chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> Payload:
        """One chunk of this reply. A key ``event`` besides is read by Open WebUI, and ignored by everybody else."""
        return {
            "id": COMPLETION_PREFIX + self.turn_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }

    def text(self, response: str, spans: Sequence[Span]) -> str:
        """The accepted answer as this caller reads it: without its own marker; for Open WebUI without any that counts.

        Open WebUI draws comments as text, and a YAML header as a heading, so what it gets is a layer above; response.md
        and ``/v1/turns`` keep them.
        """
        return fenced(page_text(response, spans)) if self.status else answer_text(response, spans)

    def completion(
        self, response: str, spans: Sequence[Span] = (), spent: TurnUsage | None = None, refusal: str = ""
    ) -> Payload:
        """The whole reply to a request without streaming; ``refusal`` says that the model refused, as OpenAI does."""
        message: Payload = {"role": "assistant", "content": None if refusal else self.text(response, spans)}
        if refusal:
            message["refusal"] = refusal
        return {
            "id": COMPLETION_PREFIX + self.turn_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "content_filter" if refusal else "stop"}],
            "usage": (spent or TurnUsage()).usage(),
        }


def opening(reply: Reply) -> list[Payload]:
    """Return what is sent before anything has happened."""
    return [reply.chunk({"role": "assistant", "content": ""})]


def pieces(text: str) -> list[str]:
    """A text in pieces for one chunk each; none for an empty text."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def ended(event: Event, reply: Reply, attached: str = "") -> list[Payload]:
    """With a turn's last event the answer and what is attached to it, or the error, else nothing."""
    end = event.body
    if not isinstance(end, kinds.TurnFinished):
        return []
    if end.outcome == "refused" and not reply.status:
        return [reply.chunk({"refusal": refusal_of(end.error, reply.locale)}), reply.chunk({}, "content_filter")]
    if not end.success:
        error = turn_error(end.outcome, end.error, reply.locale)
        if reply.status:
            error.message = failure_text(end, reply.locale, reply.turn_id)
        return [error.body()]
    text = reply.text(end.response, read_spans(end.markers, end.response)) + attached
    return [*(reply.chunk({"content": piece}) for piece in pieces(text)), reply.chunk({}, "stop")]


def turn_error(outcome: str, error: TurnError | None, locale: str) -> ApiError:
    """The error a turn that ended without an answer is to its caller.

    ``outcome`` is also its code; ``error`` is the turn's own account, ``locale`` the language where that has no words.
    """
    error = error or TurnError()
    message = error.message or _message(outcome, error.issues, locale)
    if outcome == "failed" and not message.startswith(ENFORCEMENT_ERROR):
        message = f"{ENFORCEMENT_ERROR}\n{message}"
    status, kind = _ENDS.get(outcome, (502, "server_error"))
    return ApiError(status, message, code=outcome, kind=kind, headers=dict(NO_RETRY))


def refusal_of(error: TurnError | None, locale: str) -> str:
    """The value of the OpenAI field ``refusal`` for a turn that ended as ``refused``."""
    return turn_error("refused", error, locale).message


def _message(outcome: str, issues: Sequence[ValidationIssue], locale: str) -> str:
    if outcome in GIVEN_UP:
        return GIVEN_UP[outcome].get(locale, GIVEN_UP[outcome]["en"])
    lines = [line_of(issue) for issue in issues]
    return ending(outcome if outcome in ENDED else "error", locale, lines)


# The text a page shows while its turn goes on: grown, kept, taken back, settled. Pure: events in, edits out. A draft is
# shown as it comes and taken back when it is void: the attempt is lost, begins again, did not finish, or is rejected,
# or the store lost the log. One rejection takes nothing back: when only named parts are missing (the step marker, a
# section, the header), the answer stays as it is and code puts the parts into it (surgical retry), so the page keeps it
# too, and what the agent sends for it is not shown. The same holds while a fallback repairs the answer. Nor is a draft
# taken back that broke off and that the next attempt goes on from: that attempt tells it again, and the page takes over
# what is new. In the end the page holds the accepted answer as ``Reply.text`` gives it, or nothing.


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
            case kinds.AttemptOutput(text=text):
                return self._come(self._visible(text))
            case kinds.AttemptRejected(issues=issues):
                errors = [issue for issue in issues if issue.is_error]
                self._only_parts = bool(errors) and all(issue.part and not issue.file for issue in errors)
                self._judged = True
            case kinds.TurnRetrying(reason="rejected"):
                return [] if self._only_parts else self._take_back()
            case kinds.TurnRetrying(goes_on=goes_on):
                self._goes_on = goes_on and not self._judged
                return self._begin_again()
            case kinds.AttemptStarted() | kinds.AttemptReset():
                return self._begin_again()
            case kinds.AttemptLost(during=during) if during != "validating":  # a judge that dies takes no text with it
                return self._begin_again()
            case kinds.TurnFinished() as end if end.success:
                return self._settle(self._reply.text(end.response, read_spans(end.markers, end.response)))
            case kinds.TurnFinished() | kinds.LogReset():
                return self._take_back()
            case _:  # says nothing about the text
                pass
        return []

    def _visible(self, text: str) -> str:
        """Return what a reader sees more of a growing answer."""
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
    """Return how many characters at the beginning are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if other.startswith(one[low:middle], low) else (low, middle - 1)
    return low


# The three forms of a streamed reply: validated text, live text that is taken back, drafts as reasoning. ``page_of``
# makes the form for a mode. Pure but for the text it remembers: events in, payloads out.


class PageReply:
    """A reply that shows the accepted answer only."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        #: Only Open WebUI shows it.
        self.progress = StatusLine(reply.locale, reply.pages, checked=reply.checked) if reply.status else None
        self._spent = TurnUsage() if reply.include_usage else None
        #: What is added to the answer, should there be one; and whether a person was asked about a tool call.
        self.attached, self.asked = "", False

    def ask(self, text: str) -> list[Payload]:
        """Return what shows a question to its reader. It stays in the chat, in front of the answer."""
        return [self.reply.chunk({"content": text})]

    def render(self, event: Event) -> list[Payload]:
        """Return what is sent because of ``event``."""
        if not self._spent:
            return self._rendered(event)
        self._spent.take(event)
        body = event.body
        passed = isinstance(body, kinds.TurnFinished) and body.success
        used = [{**self.reply.chunk({}), "choices": [], "usage": self._spent.usage()}] if passed else []
        return [*self._rendered(event), *used]

    def _rendered(self, event: Event) -> list[Payload]:
        line = self.line(self.progress.take(event)) if self.progress else []
        return [*line, *ended(event, self.reply, self.attached)]

    def skip(self, event: Event) -> None:
        """Take in an event that happened before this reader came; ``catch_up``, or the next event, then tells all."""
        if self._spent:
            self._spent.take(event)
        if self.progress:
            self.progress.take(event)

    def catch_up(self) -> list[Payload]:
        """Return what a reader who comes late has to be sent: where the turn is now."""
        return self.line(self.progress.current) if self.progress else []

    def line(self, status: dict[str, Any] | None) -> list[Payload]:
        """A status event inside a chunk that adds nothing; nothing without a status."""
        return [{**self.reply.chunk({}), "event": status}] if status else []


class _DraftPage(PageReply):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._draft = Draft(reply)
        self._behind = False

    def _rendered(self, event: Event) -> list[Payload]:
        """The status line, then what changes of the text, then the end."""
        edits = self._draft.take(event)
        if self._behind:
            edits = self._all()
        status = self.line(self.progress.take(event)) + self._writing(edits) if self.progress else []
        body = event.body
        if isinstance(body, kinds.TurnFinished) and body.success:
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
        """The line that ends with the first text of a draft."""
        return self.line(self.progress.writing()) if self.progress and any(edit.added for edit in edits) else []

    def _all(self) -> list[Edit]:
        self._behind = False
        return [Edit(self._draft.shown)] if self._draft.shown else []

    def _changed(self, edits: list[Edit]) -> list[Payload]:
        raise NotImplementedError

    def _accepted(self, edits: list[Edit]) -> list[Payload]:
        raise NotImplementedError


class LivePage(_DraftPage):
    """A reply whose text is shown as it comes and taken back when it is void.

    Open WebUI reads frames of the Responses API between ordinary chunks, and the frame that says that a text is done
    sets the text: so it can also be made shorter. Stored is what is there at the end.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._open = False
        self._place = {"output_index": 0, "item_id": f"msg_{reply.turn_id}", "content_index": 0}

    def ask(self, text: str) -> list[Payload]:
        """Return the question behind the draft, with which it is taken back when the agent goes on."""
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
    """A reply that shows drafts as reasoning, which clients fold away; the answer follows when it is accepted."""

    def _changed(self, edits: list[Edit]) -> list[Payload]:
        void = f"\n\n{say('void', self.reply.locale)}\n\n"
        texts = [edit.added if edit.kept is None else void + edit.added for edit in edits]
        return [self.reply.chunk({"reasoning_content": piece}) for text in texts for piece in pieces(text)]

    def _accepted(self, edits: list[Edit]) -> list[Payload]:
        return [self.reply.chunk({"content": piece}) for piece in pieces(self._draft.shown)]


def page_of(reply: Reply, mode: StreamMode) -> PageReply:
    """The page for a mode."""
    kind = {StreamMode.LIVE: LivePage, StreamMode.DRAFT: ReasoningPage, StreamMode.VALIDATED: PageReply}[mode]
    return kind(reply)

"""Build the parts of an OpenAI chat completion from a turn's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.contract.issue import ValidationIssue
from api_client.contract.marker import Span, answer_text, page_text, read_spans
from api_client.contract.messages import ENDED, GIVEN_UP, ending, line_of
from api_client.contract.turn_error import TurnError
from api_client.web.errors import NO_RETRY, ApiError
from api_client.web.openwebui.failure import failure_text
from api_client.web.openwebui.front_matter import fenced
from api_client.web.streaming.chunks import COMPLETION_PREFIX
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.token_usage import TurnUsage

#: First line of the message of a turn that failed validation (ADR-038, "stream_enforcement_error").
ENFORCEMENT_ERROR = "[ENFORCEMENT ERROR]"
#: Most characters of an answer in one chunk.
PIECE = 1_000
#: Outcome -> HTTP status (if nothing was sent yet) and type of the error object.
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
    """The values that all parts of the reply to a chat request share, such as the model and the language.

    Attributes:
        created: Unix time in seconds.
        status: the caller is Open WebUI: send progress as status events inside chunks, show no marker.
        checked: the turn has validators.
        pages: address of the relay's pages without a trailing slash; empty if unknown.
        question: hash that identifies repeated requests, or empty.
        page: Open WebUI shows the reply as it arrives.
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
        """Build one chunk of a streamed chat completion with the given change.

        Open WebUI reads an additional key ``event``; other clients ignore it.
        """
        return {
            "id": COMPLETION_PREFIX + self.turn_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }

    def text(self, response: str, spans: Sequence[Span]) -> str:
        """Return the text of an accepted answer as the caller reads it, without step markers.

        For Open WebUI, which draws comments as text and YAML headers as headings, also remove other markers and fence
        headers.
        """
        return fenced(page_text(response, spans)) if self.status else answer_text(response, spans)

    def completion(
        self, response: str, spans: Sequence[Span] = (), spent: TurnUsage | None = None, refusal: str = ""
    ) -> Payload:
        """Build the whole chat completion for a request without streaming.

        ``refusal`` is OpenAI's field of that name.
        """
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
    """Return the first chunk of a stream, which names the role and holds no text."""
    return [reply.chunk({"role": "assistant", "content": ""})]


def pieces(text: str) -> list[str]:
    """Split a text into pieces of at most ``PIECE`` characters, one for each chunk of a stream."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def ended(event: Event, reply: Reply, attached: str = "") -> list[Payload]:
    """Return the chunks for the last event of a turn: the answer with attachments, or the error.

    For any other event, return an empty list.
    """
    end = event.body
    if not isinstance(end, event_kinds.TurnFinished):
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
    """Build the API error for a turn that ended without an answer; ``outcome`` becomes its code.

    ``outcome`` is also the error's code; ``locale`` is used if the turn recorded no message.
    """
    error = error or TurnError()
    message = error.message or _message(outcome, error.issues, locale)
    if outcome == "failed" and not message.startswith(ENFORCEMENT_ERROR):
        message = f"{ENFORCEMENT_ERROR}\n{message}"
    status, kind = _ENDS.get(outcome, (502, "server_error"))
    return ApiError(status, message, code=outcome, kind=kind, headers=dict(NO_RETRY))


def refusal_of(error: TurnError | None, locale: str) -> str:
    """Return the text with which the model refused to answer, for OpenAI's field ``refusal``."""
    return turn_error("refused", error, locale).message


def _message(outcome: str, issues: Sequence[ValidationIssue], locale: str) -> str:
    if outcome in GIVEN_UP:
        return GIVEN_UP[outcome].get(locale, GIVEN_UP[outcome]["en"])
    lines = [line_of(issue) for issue in issues]
    return ending(outcome if outcome in ENDED else "error", locale, lines)

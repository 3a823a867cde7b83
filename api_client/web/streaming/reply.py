"""From a turn's events to what a chat client receives. Pure: an event in, payloads out.

The forms of a streamed reply are in ``page``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api_client.contract.event_kinds import TurnFinished
from api_client.contract.events import Event
from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.issues.turn_error import TurnError
from api_client.contract.marker import Span, answer_text, page_text, read_spans
from api_client.contract.words.messages import ENDED, GIVEN_UP, ending, line_of
from api_client.web.errors import NO_RETRY, ApiError
from api_client.web.openwebui.failure import failure_text
from api_client.web.openwebui.front_matter import fenced
from api_client.web.streaming.chunks import COMPLETION_PREFIX, ChatCompletion, Chunk, Delta, FinishReason, Message
from api_client.web.streaming.token_usage import TurnUsage

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

Payload = Chunk | dict[str, Any]


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

    def chunk(self, delta: Delta, finish_reason: FinishReason | None = None) -> Chunk:
        """One chunk of this reply."""
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

    def usage_chunk(self, spent: TurnUsage) -> Payload:
        """The chunk without choices that says what was used."""
        return {**self.chunk({}), "choices": [], "usage": spent.usage()}

    def completion(
        self, response: str, spans: Sequence[Span] = (), spent: TurnUsage | None = None, refusal: str = ""
    ) -> ChatCompletion:
        """The whole reply to a request without streaming; ``refusal`` says that the model refused, as OpenAI does."""
        message: Message = {"role": "assistant", "content": None if refusal else self.text(response, spans)}
        if refusal:
            message["refusal"] = refusal
        return {
            "id": COMPLETION_PREFIX + self.turn_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "content_filter" if refusal else "stop",
                }
            ],
            "usage": (spent or TurnUsage()).usage(),
        }


def opening(reply: Reply) -> list[Payload]:
    """Return what is sent before anything has happened."""
    return [reply.chunk({"role": "assistant", "content": ""})]


def pieces(text: str) -> list[str]:
    """A text in pieces for one chunk each; none for an empty text."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def ended(event: Event, reply: Reply) -> list[Payload]:
    """With a turn's last event the answer or the error, else nothing."""
    end = event.body
    if not isinstance(end, TurnFinished):
        return []
    if end.outcome == "refused" and not reply.status:
        return [reply.chunk({"refusal": refusal_of(end.error, reply.locale)}), reply.chunk({}, "content_filter")]
    if not end.success:
        error = turn_error(end.outcome, end.error, reply.locale)
        if reply.status:
            error.message = failure_text(end, reply.locale, reply.turn_id, reply.pages)
        return [error.body()]
    text = reply.text(end.response, read_spans(end.markers, end.response))
    return [*(reply.chunk({"content": piece}) for piece in pieces(text)), reply.chunk({}, "stop")]


def turn_error(outcome: str, error: TurnError | None, locale: str) -> ApiError:
    """The error a turn that ended without an answer is to its caller.

    Args:
        outcome: how it ended; also the error's code.
        error: the turn's own account; None where it has none.
        locale: language of the words, where the turn has none.
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

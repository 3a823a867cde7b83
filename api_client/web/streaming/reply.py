"""Builds the parts of an OpenAI chat completion from a turn's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.contract.issue import ValidationIssue
from api_client.contract.messages import ENDED, GIVEN_UP, ending_message, format_issue
from api_client.contract.step_marker import Span, read_spans, strip_all_markers, strip_own_marker
from api_client.contract.turn_error import TurnError
from api_client.web.errors import NO_RETRY, ApiError
from api_client.web.openwebui.failure_text import format_failure
from api_client.web.openwebui.front_matter import fence_headers
from api_client.web.streaming.chunks import COMPLETION_PREFIX
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.token_usage import TurnUsage

#: First line of the message of a turn that failed validation (ADR-038, "stream_enforcement_error").
ENFORCEMENT_ERROR = "[ENFORCEMENT ERROR]"
MAX_CHUNK_CHARS = 1_000
#: Outcome -> HTTP status (if nothing was sent yet) and type of the error object.
_OUTCOME_ERRORS = {
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
    """The facts about a chat request that all parts of its reply need, such as model and language."""

    turn_id: str
    model: str
    created: int
    locale: str
    from_open_webui: bool = False
    has_validators: bool = True
    pages_url: str = ""
    include_usage: bool = False
    owner: str = ""
    session_id: str = ""
    question_hash: str = ""
    has_page: bool = False
    #: The request demands JSON. OpenAI's clients then raise an error for the finish reason ``content_filter``.
    is_json: bool = False

    @property
    def refusal_reason(self) -> str:
        return "stop" if self.is_json else "content_filter"

    def make_chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> Payload:
        """Build a chunk of a streamed chat completion from the changed fields of the message."""
        return {
            "id": COMPLETION_PREFIX + self.turn_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }

    def format_answer(self, response: str, spans: Sequence[Span]) -> str:
        """Return the text of an accepted answer for the caller, without step markers."""
        return (
            fence_headers(strip_all_markers(response, spans))
            if self.from_open_webui
            else strip_own_marker(response, spans)
        )

    def make_completion(
        self, response: str, spans: Sequence[Span] = (), spent: TurnUsage | None = None, refusal: str = ""
    ) -> Payload:
        """Build the whole chat completion for a request without streaming."""
        message: Payload = {"role": "assistant", "content": None if refusal else self.format_answer(response, spans)}
        if refusal:
            message["refusal"] = refusal
        return {
            "id": COMPLETION_PREFIX + self.turn_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": self.refusal_reason if refusal else "stop"}],
            "usage": (spent or TurnUsage()).chat_usage(),
        }


def make_opening(reply: Reply) -> Payload:
    """Return the first chunk of a stream, which names the role and has no text."""
    return reply.make_chunk({"role": "assistant", "content": ""})


def split_text(text: str) -> list[str]:
    """Split a text into pieces of at most ``MAX_CHUNK_CHARS`` characters, one per chunk of a stream."""
    return [text[start : start + MAX_CHUNK_CHARS] for start in range(0, len(text), MAX_CHUNK_CHARS)]


def make_ending(event: Event, reply: Reply, attached: str = "") -> list[Payload]:
    """Return the chunks with the answer or error for a turn's last event, or no chunks for other events."""
    end = event.body
    if not isinstance(end, event_kinds.TurnFinished):
        return []
    if end.outcome == "refused" and not reply.from_open_webui:
        return [
            reply.make_chunk({"refusal": refusal_message(end.error, reply.locale)}),
            reply.make_chunk({}, reply.refusal_reason),
        ]
    if not end.success:
        return [make_failure(end, reply).to_body()]
    text = reply.format_answer(end.response, read_spans(end.markers, end.response)) + attached
    return [*(reply.make_chunk({"content": piece}) for piece in split_text(text)), reply.make_chunk({}, "stop")]


def make_failure(end: event_kinds.TurnFinished, reply: Reply) -> ApiError:
    """Build the API error for a turn that ended without an answer, in the words that its reader understands."""
    error = make_turn_error(end.outcome, end.error, reply.locale)
    if reply.from_open_webui:
        error.message = format_failure(end, reply.locale, reply.turn_id)
    return error


def make_turn_error(outcome: str, error: TurnError | None, locale: str) -> ApiError:
    """Build the API error for a turn that ended without an answer.

    ``outcome`` becomes the error's code; ``locale`` is used if the turn recorded no message.
    """
    error = error or TurnError()
    message = error.message or _default_message(outcome, error.issues, locale)
    if outcome == "failed" and not message.startswith(ENFORCEMENT_ERROR):
        message = f"{ENFORCEMENT_ERROR}\n{message}"
    status, kind = _OUTCOME_ERRORS.get(outcome, (502, "server_error"))
    return ApiError(status, message, code=outcome, kind=kind, headers=dict(NO_RETRY))


def refusal_message(error: TurnError | None, locale: str) -> str:
    """Return the text of the model's refusal, for OpenAI's field ``refusal``."""
    return make_turn_error("refused", error, locale).message


def _default_message(outcome: str, issues: Sequence[ValidationIssue], locale: str) -> str:
    if outcome in GIVEN_UP:
        return GIVEN_UP[outcome].get(locale, GIVEN_UP[outcome]["en"])
    lines = [format_issue(issue) for issue in issues]
    return ending_message(outcome if outcome in ENDED else "error", locale, lines)

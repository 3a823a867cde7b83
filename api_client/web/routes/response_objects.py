"""Builds the objects of the Responses API, and the events of a streamed response.

The events derive only from the turn's log, so their numbers are always the same and a reader can resume at any relay.
"""

from __future__ import annotations

import json
from dataclasses import replace

from api_client.contract.answer_format import AnswerFormat
from api_client.contract.event_kinds import AttemptStarted, TurnFinished, TurnQueued
from api_client.contract.events import Event
from api_client.contract.step_marker import read_spans, strip_own_marker
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.web.bodies.response_input import BACKGROUND, INSTRUCTIONS, METADATA
from api_client.web.errors import ApiError
from api_client.web.streaming.chunks import message_item, text_part
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import make_turn_error, refusal_message, split_text
from api_client.web.streaming.token_usage import TurnUsage

RESPONSE_PREFIX = "resp_"
#: Events before the answer: created, queued, and in progress once an agent has started.
_OPENING_EVENTS = 2


def response_status(turn: Turn) -> str:
    """Return OpenAI's word for a turn's status: queued, in_progress, completed, failed or cancelled."""
    if turn.state is TurnState.FINISHED:
        answered = turn.success or read_refusal(turn)
        return "completed" if answered else "cancelled" if turn.outcome is Outcome.CANCELLED else "failed"
    return "in_progress" if turn.delivery else "queued"


def read_refusal(turn: Turn) -> str:
    """Return the model's refusal to answer in the requested JSON format, or an empty string.

    OpenAI's clients expect such a refusal as content; a refusal of a text is the turn's failure.
    """
    if turn.outcome is not Outcome.REFUSED or AnswerFormat.from_request(turn.request) is None:
        return ""
    return refusal_message(turn.error, turn.request.locale)


def _answer_part(turn: Turn) -> Payload:
    refusal = read_refusal(turn)
    shown = strip_own_marker(turn.response, turn.markers)
    return {"type": "refusal", "refusal": refusal} if refusal else text_part(shown)


def response_object(turn: Turn, spent: TurnUsage | None = None) -> Payload:
    """Build OpenAI's response object for a turn, with the turn's own data in the field ``turn``."""
    status, notes = response_status(turn), turn.request.metadata
    messages = turn.request.messages
    chosen = AnswerFormat.from_request(turn.request)
    failure = make_turn_error(str(turn.outcome), turn.error, turn.request.locale) if status == "failed" else None
    return {
        "id": RESPONSE_PREFIX + turn.turn_id,
        "object": "response",
        "created_at": int(turn.created_at),
        "completed_at": int(turn.finished_at) if status == "completed" else None,
        "status": status,
        "background": bool(notes.get(BACKGROUND)),
        "model": turn.request.model,
        "instructions": messages[0]["content"] if notes.get(INSTRUCTIONS) else None,
        "output": [message_item(turn.turn_id, "completed", _answer_part(turn))] if status == "completed" else [],
        "error": {"code": "server_error", "message": failure.message} if failure else None,
        "incomplete_details": None,
        "metadata": json.loads(notes.get(METADATA) or "{}"),
        "previous_response_id": None,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "text": {"format": chosen.given if chosen else {"type": "text"}},
        "truncation": "disabled",
        "usage": (spent or TurnUsage()).response_usage(),
        "store": True,
        "turn": {
            "turn_id": turn.turn_id,
            "session_id": turn.request.session_id,
            "outcome": turn.outcome,
            "stopping": bool(turn.stop) and turn.state is not TurnState.FINISHED,
        },
    }


class ResponseEvents:
    """Converts all events of a turn, in order, to the events of OpenAI's Responses API."""

    def __init__(self, turn: Turn) -> None:
        self._turn = replace(
            turn, state=TurnState.QUEUED, delivery=0, outcome=None, response="", markers=(), error=None, stop=""
        )
        self._item_position = {"item_id": f"msg_{turn.turn_id}", "output_index": 0, "content_index": 0}
        self._usage = TurnUsage()
        self.last_sent = -1

    def render(self, event: Event) -> list[Payload]:
        """Return the events of the Responses API that correspond to an event of the turn."""
        self._usage.add_event(event)
        body = event.body
        if isinstance(body, TurnQueued):
            return self._open_response()
        if isinstance(body, AttemptStarted) and not self._turn.delivery:
            self._turn = replace(self._turn, state=TurnState.RUNNING, delivery=1)
            return self._number_payloads([self._wrap_response("response.in_progress")])
        if not isinstance(body, TurnFinished):
            return []
        ended = replace(
            self._turn,
            state=TurnState.FINISHED,
            outcome=Outcome(body.outcome),
            response=body.response,
            markers=read_spans(body.markers, body.response),
            error=body.error,
            finished_at=event.at,
        )
        return self.render_rest(ended)

    def render_rest(self, turn: Turn) -> list[Payload]:
        """Return the events that are still to be sent for a finished turn."""
        opening, self._turn = self._open_response(), turn
        return opening + self._number_payloads(self._render_ending())

    def render_error(self, error: ApiError) -> Payload:
        """Return the event that tells a client that the stream broke off.

        The payload repeats the last event's number, so that a reader can resume after that event.
        """
        body = error.to_body()["error"]
        named = {name: body[name] for name in ("code", "message", "param")}
        return {"type": "error", "sequence_number": max(self.last_sent, 0), **named, "error": body}

    def _open_response(self) -> list[Payload]:
        if self.last_sent >= 0:  # a log that starts again repeats the turn's first event
            return []
        return self._number_payloads([self._wrap_response("response.created"), self._wrap_response("response.queued")])

    def _number_payloads(self, payloads: list[Payload]) -> list[Payload]:
        numbered = [{**payload, "sequence_number": self.last_sent + place} for place, payload in enumerate(payloads, 1)]
        self.last_sent += len(payloads)
        return numbered

    def _wrap_response(self, kind: str) -> Payload:
        return {"type": kind, "response": response_object(self._turn, self._usage)}

    def _render_ending(self) -> list[Payload]:
        if response_status(self._turn) != "completed":
            return [self._wrap_response("response.failed")]
        part, turn_id = _answer_part(self._turn), self._turn.turn_id
        kind, field = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
        empty = {**part, field: ""}
        begun, done = message_item(turn_id, "in_progress"), message_item(turn_id, "completed", part)
        position = self._item_position | ({} if field == "refusal" else {"logprobs": []})
        deltas = [{"type": f"response.{kind}.delta", **position, "delta": piece} for piece in split_text(part[field])]
        return [
            {"type": "response.output_item.added", "output_index": 0, "item": begun},
            {"type": "response.content_part.added", **self._item_position, "part": empty},
            *deltas,
            {"type": f"response.{kind}.done", **position, field: part[field]},
            {"type": "response.content_part.done", **self._item_position, "part": part},
            {"type": "response.output_item.done", "output_index": 0, "item": done},
            self._wrap_response("response.completed"),
        ]


def last_number(turn: Turn) -> int:
    """Return the number of the latest event in a response stream of this turn."""
    opening = _OPENING_EVENTS if turn.delivery else _OPENING_EVENTS - 1
    if turn.state is not TurnState.FINISHED:
        return opening
    if response_status(turn) != "completed":
        return opening + 1
    part = _answer_part(turn)
    return opening + 6 + len(split_text(part.get("text") or part.get("refusal", "")))

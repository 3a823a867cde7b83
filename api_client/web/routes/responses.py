"""``/v1/responses``: a turn behind OpenAI's Responses API, for text. The hosted background mode, self-hosted.

A page of Open WebUI whose connection is of this type gets the same stream as one of chat completions: it reads the
frames of both APIs in either, and only so it can show progress and take a draft back.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.client import act
from api_client.contract.events import AttemptStarted, Event, TurnFinished, TurnQueued
from api_client.contract.issues import TurnNotFound
from api_client.contract.marker import answer_text, read_spans
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.index import find_turn
from api_client.store.audit import by_key
from api_client.web.bodies.ask import BACKGROUND, INSTRUCTIONS, METADATA, Ask, read_response_ask
from api_client.web.bodies.models import ResponseBody, operation
from api_client.web.errors import ApiError, bad_request
from api_client.web.identity import Asker, Reach
from api_client.web.intake import delivered, require_rate, submit
from api_client.web.listing import JSON, PING, SSE_HEADERS, SSE_RESPONSES, event_frame
from api_client.web.openwebui.background import answer_task
from api_client.web.relay import Relay, RelayOf
from api_client.web.routes.completions import ask_of
from api_client.web.streaming.following import (
    WaitsForPerson,
    broken,
    follow,
    in_one_piece,
    page_stream,
    reply_to,
    spent,
    task_answer,
)
from api_client.web.streaming.reply import Payload, Reply, TurnUsage, message_item, pieces, text_part, turn_error

# The objects of the API, and the events of one as they are streamed. Pure: turn in, JSON out. The events of a response
# are made from the turn's log alone, in the same order with the same numbers each time. So a reader can go on behind
# any number, on any relay, also after the end. Text is held back until it is accepted.

PREFIX = "resp_"
#: Numbers of the events before the answer: created, queued, and in progress once an agent has started.
_OPENING = 2


def status_of(turn: Turn) -> str:
    """The status OpenAI has for where the turn is."""
    if turn.state is TurnState.FINISHED:
        return "completed" if turn.success else "cancelled" if turn.outcome is Outcome.CANCELLED else "failed"
    return "in_progress" if turn.delivery else "queued"


def response_of(turn: Turn, spent: TurnUsage | None = None) -> Payload:
    """The turn as a response, with what it used. ``turn`` in it is ours: what OpenAI's fields cannot say."""
    status, notes = status_of(turn), turn.request.metadata
    messages = turn.request.messages
    text = answer_text(turn.response, turn.markers)
    # OpenAI's words for codes are a closed list, and only one of them fits; our own is the turn's outcome.
    failure = turn_error(str(turn.outcome), turn.error, turn.request.locale) if status == "failed" else None
    return {
        "id": PREFIX + turn.turn_id,
        "object": "response",
        "created_at": int(turn.created_at),
        "completed_at": int(turn.finished_at) if status == "completed" else None,
        "status": status,
        "background": bool(notes.get(BACKGROUND)),
        "model": turn.request.model,
        "instructions": messages[0]["content"] if notes.get(INSTRUCTIONS) else None,
        "output": [message_item(turn.turn_id, "completed", text_part(text))] if status == "completed" else [],
        "error": {"code": "server_error", "message": failure.message} if failure else None,
        "incomplete_details": None,
        "metadata": json.loads(notes.get(METADATA) or "{}"),
        "previous_response_id": None,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "text": {"format": {"type": "text"}},
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
    """The events of one response. ``render`` takes the turn's events from the first; none may be left out."""

    def __init__(self, turn: Turn) -> None:
        self._turn = replace(
            turn, state=TurnState.QUEUED, delivery=0, outcome=None, response="", markers=(), error=None, stop=""
        )
        self._place = {"item_id": f"msg_{turn.turn_id}", "output_index": 0, "content_index": 0}
        self._spent = TurnUsage()
        self.sent = -1

    def render(self, event: Event) -> list[Payload]:
        """Return what is sent because of ``event``."""
        self._spent.take(event)
        body = event.body
        if isinstance(body, TurnQueued) and self.sent < 0:  # a log that starts again repeats it
            return self._number([self._whole("response.created"), self._whole("response.queued")])
        if isinstance(body, AttemptStarted) and not self._turn.delivery:
            self._turn = replace(self._turn, state=TurnState.RUNNING, delivery=1)
            return self._number([self._whole("response.in_progress")])
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
        return self.all_of(ended)

    def all_of(self, turn: Turn) -> list[Payload]:
        """Return the rest to be sent of a turn that has ended."""
        opening: list[Payload] = []
        if self.sent < 0:
            opening = self._number([self._whole("response.created"), self._whole("response.queued")])
        self._turn = turn
        return opening + self._number(self._ending())

    def broken(self, error: ApiError) -> Payload:
        """The last words of a stream that cannot go on. It counts as nothing, so that a reader can resume behind it."""
        body = error.body()["error"]
        named = {name: body[name] for name in ("code", "message", "param")}
        return {"type": "error", "sequence_number": max(self.sent, 0), **named, "error": body}

    def _number(self, payloads: list[Payload]) -> list[Payload]:
        numbered = [{**payload, "sequence_number": self.sent + place} for place, payload in enumerate(payloads, 1)]
        self.sent += len(payloads)
        return numbered

    def _whole(self, kind: str) -> Payload:
        return {"type": kind, "response": response_of(self._turn, self._spent)}

    def _ending(self) -> list[Payload]:
        if status_of(self._turn) != "completed":
            return [self._whole("response.failed")]
        text, turn_id = answer_text(self._turn.response, self._turn.markers), self._turn.turn_id
        begun, done = message_item(turn_id, "in_progress"), message_item(turn_id, "completed", text_part(text))
        deltas = [
            {"type": "response.output_text.delta", **self._place, "delta": piece, "logprobs": []}
            for piece in pieces(text)
        ]
        return [
            {"type": "response.output_item.added", "output_index": 0, "item": begun},
            {"type": "response.content_part.added", **self._place, "part": text_part("")},
            *deltas,
            {"type": "response.output_text.done", **self._place, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **self._place, "part": text_part(text)},
            {"type": "response.output_item.done", "output_index": 0, "item": done},
            self._whole("response.completed"),
        ]


def last_number(turn: Turn) -> int:
    """The number of the last event the response has so far."""
    opening = _OPENING if turn.delivery else _OPENING - 1
    if turn.state is not TurnState.FINISHED:
        return opening
    if status_of(turn) != "completed":
        return opening + 1
    return opening + 6 + len(pieces(answer_text(turn.response, turn.markers)))


router = APIRouter(prefix="/v1/responses")

Streamed = Annotated[bool, Query(alias="stream")]
After = Annotated[int | None, Query(ge=0, le=10**9)]


@router.post("", response_model=None, responses=SSE_RESPONSES, openapi_extra=operation(ResponseBody))
async def create(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Answer a conversation: at once with ``background``, as a stream with ``stream``, else when the turn has ended."""
    ask = await ask_of(request, relay, caller, "responses", read_response_ask)
    if ask.task:
        await require_rate(relay, caller)
        return _task_answer(ask)
    submitted = await submit(request, ask, relay, caller)
    reply = reply_to(relay, ask, submitted.turn_id)
    if ask.stream and ask.page:
        return page_stream(relay, reply, ask.mode, submitted)
    turn = await relay.client.reader.get(reply.turn_id, owner=caller.owner)
    named = {"x-turn-id": reply.turn_id}
    if ask.stream:
        frames = stream(relay, turn, caller.owner, reply=reply)
        return StreamingResponse(frames, media_type="text/event-stream", headers=named | SSE_HEADERS)
    if ask.request.metadata[BACKGROUND]:
        return JSON(response_of(turn), headers=named)
    del ask, turn  # who waits for the answer needs no memory for the question
    return await in_one_piece(
        request, relay, reply, lambda turn, used: response_of(turn, used) if turn.success else None
    )


def _task_answer(ask: Ask) -> Response:
    """The answer to a background request of a chat interface; no turn is made.

    Open WebUI's view that merges answers reads a stream itself, and knows the chunks of chat completions only.
    """
    if ask.stream and ask.open_webui:
        return task_answer(ask)
    turn = Turn(
        turn_id=f"task-{secrets.token_hex(12)}",
        epoch="",
        state=TurnState.FINISHED,
        request=ask.request,
        delivery=1,
        outcome=Outcome.PASSED,
        response=answer_task(ask.task, ask.request.messages),
        created_at=time.time(),
        finished_at=time.time(),
    )
    if not ask.stream:
        return JSON(response_of(turn))
    frames = [event_frame(payload["type"], payload) for payload in ResponseEvents(turn).all_of(turn)]
    return Response(b"".join(frames), media_type="text/event-stream", headers=SSE_HEADERS)


@router.get("/{response_id}", response_model=None, responses=SSE_RESPONSES)
async def show(
    response_id: str, relay: RelayOf, owner: Reach, stream_it: Streamed = False, starting_after: After = None
) -> Response:
    """The response as it is now, or with ``stream`` its events: all, or those behind number ``starting_after``."""
    turn = await _turn(relay, response_id, owner)
    if starting_after is not None:
        if not stream_it:
            raise bad_request("starting_after: only with stream=true", param="starting_after")
        if starting_after > last_number(turn):
            message = f"starting_after: the last event so far has number {last_number(turn)}; got {starting_after}"
            raise bad_request(message, param="starting_after")
    if not stream_it:
        return JSON(response_of(turn, await _used(relay, turn, owner)))
    frames = stream(relay, turn, owner, after=-1 if starting_after is None else starting_after)
    return StreamingResponse(frames, media_type="text/event-stream", headers=SSE_HEADERS)


@router.post("/{response_id}/cancel", response_model=None)
async def cancel(response_id: str, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Call the turn off. Repeating it, or cancelling a finished one, changes nothing."""
    turn = await _turn(relay, response_id, owner)
    await act(relay.client, "cancel", turn.turn_id, by=by_key(caller.owner), owner=owner)
    turn = await relay.client.reader.get(turn.turn_id, owner=owner)
    return JSON(response_of(turn, await _used(relay, turn, owner)))


async def _used(relay: Relay, turn: Turn, owner: str | None) -> TurnUsage | None:
    return await spent(relay, turn.turn_id, owner) if turn.state is TurnState.FINISHED else None


async def stream(
    relay: Relay, turn: Turn, owner: str | None, *, after: int = -1, reply: Reply | None = None
) -> AsyncIterator[bytes]:
    """The response's events behind number ``after``. The last one is the response's end, or says that it is lost.

    With ``reply`` this is the first asker's stream: it is noted whether the reader leaves early or reads to the end.
    """
    turn_id, events, whole = turn.turn_id, ResponseEvents(turn), False
    try:
        with relay.readers.reading(turn_id):
            async with aclosing(follow(relay, turn_id, owner, patience=relay.settings.parked_seconds)) as log:
                async for event in log:
                    for payload in events.render(event) if event else ():
                        if payload["sequence_number"] > after:
                            yield event_frame(payload["type"], payload)
                    if event is None:
                        yield PING
            whole = True
            if reply:
                await delivered(relay, reply.owner, reply.question, turn_id)
    except Exception as error:
        whole = isinstance(error, WaitsForPerson)  # sent away, not gone
        last = events.broken(broken(error, turn_id, turn.request.locale))
        yield event_frame(last["type"], last)
    finally:
        if reply and reply.page and not whole:
            relay.readers.left(turn_id, reply.owner)


async def _turn(relay: Relay, response_id: str, owner: str | None) -> Turn:
    """The turn of a response. Raises ``TurnNotFound``: not a response of this owner."""
    if not response_id.startswith(PREFIX):
        raise TurnNotFound(response_id)
    whole = await find_turn(relay.client.lists, response_id.removeprefix(PREFIX), owner=owner)
    return await relay.client.reader.get(whole, owner=owner)

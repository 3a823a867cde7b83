"""``/v1/responses``: turns behind OpenAI's Responses API."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.actions import act
from api_client.contract.errors import TurnNotFound
from api_client.contract.orders import name_caller
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.index.finding import find_turn
from api_client.web.bodies.ask import Ask
from api_client.web.bodies.models import ResponseBody, operation
from api_client.web.bodies.response_input import BACKGROUND, read_response_ask
from api_client.web.errors import bad_request
from api_client.web.identity.access import Asker, Reach
from api_client.web.intake import delivered, require_rate, submit
from api_client.web.openwebui.background import answer_task
from api_client.web.relay.relay import Relay, RelayOf
from api_client.web.routes.completions import ask_of
from api_client.web.routes.response_objects import PREFIX, ResponseEvents, last_number, response_of
from api_client.web.streaming.chat_stream import page_stream, reply_to, task_answer
from api_client.web.streaming.following import WaitsForPerson, broken, follow, in_one_piece, spent
from api_client.web.streaming.reply import Reply
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.wire import JSON, PING, SSE_HEADERS, SSE_RESPONSES, event_frame

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
    del ask, turn  # free the memory of the question while waiting for its answer
    return await in_one_piece(
        request, relay, reply, lambda turn, used: response_of(turn, used) if turn.success else None
    )


def _task_answer(ask: Ask) -> Response:
    """Return the response to a background request, which needs no turn.

    Open WebUI's merge view parses the stream itself and understands only chunks of chat completions.
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
    """Return the response, or stream its events with ``stream``, all or those after ``starting_after``."""
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
    """Cancel the turn. Cancelling twice, or cancelling a finished turn, changes nothing."""
    turn = await _turn(relay, response_id, owner)
    await act(relay.client, "cancel", turn.turn_id, by=name_caller(caller.owner), owner=owner)
    turn = await relay.client.reader.get(turn.turn_id, owner=owner)
    return JSON(response_of(turn, await _used(relay, turn, owner)))


async def _used(relay: Relay, turn: Turn, owner: str | None) -> TurnUsage | None:
    return await spent(relay, turn.turn_id, owner) if turn.state is TurnState.FINISHED else None


async def stream(
    relay: Relay, turn: Turn, owner: str | None, *, after: int = -1, reply: Reply | None = None
) -> AsyncIterator[bytes]:
    """Yield the server-sent events of a response, beginning after the number ``after``.

    With ``reply``, also record whether the reader leaves early or reads to the end.
    """
    turn_id, events, whole = turn.turn_id, ResponseEvents(turn), False
    try:
        with relay.readers.reading(turn_id):
            async with aclosing(follow(relay, turn_id, owner, patience=relay.settings.suspended_seconds)) as log:
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
        whole = isinstance(error, WaitsForPerson)  # dismissed, did not leave
        last = events.broken(broken(error, turn_id, turn.request.locale))
        yield event_frame(last["type"], last)
    finally:
        if reply and reply.page and not whole:
            relay.readers.left(turn_id, reply.owner)


async def _turn(relay: Relay, response_id: str, owner: str | None) -> Turn:
    if not response_id.startswith(PREFIX):
        raise TurnNotFound(response_id)
    whole = await find_turn(relay.client.lists, response_id.removeprefix(PREFIX), owner=owner)
    return await relay.client.reader.get(whole, owner=owner)

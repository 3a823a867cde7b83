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

from api_client.contract.errors import TurnNotFound
from api_client.contract.order_log import name_caller
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.index.turn_lookup import find_turn
from api_client.operator_actions import carry_out_action
from api_client.turn_actions.cancel import ACTION as CANCEL
from api_client.web.bodies.chat_request import ChatRequest
from api_client.web.bodies.models import ResponseBody, openapi_operation
from api_client.web.bodies.response_input import BACKGROUND, read_response_request
from api_client.web.errors import bad_request
from api_client.web.identity.access import CurrentCaller, VisibleOwner
from api_client.web.intake.turn_submission import note_delivery, require_rate, submit_or_join
from api_client.web.openwebui.background_tasks import answer_task
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.routes.completions import read_request
from api_client.web.routes.response_objects import (
    RESPONSE_PREFIX,
    ResponseEvents,
    last_number,
    read_refusal,
    response_object,
)
from api_client.web.streaming.chat_stream import answer_background_task, make_reply, stream_page
from api_client.web.streaming.reply import Reply
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.streaming.turn_following import (
    SuspendedTooLong,
    answer_whole,
    follow_turn,
    read_usage,
    stream_error,
)
from api_client.web.wire import PING, SSE_HEADERS, SSE_RESPONSES, JSONResponse, event_frame

router = APIRouter(prefix="/v1/responses")

StreamParameter = Annotated[bool, Query(alias="stream")]
StartingAfterParameter = Annotated[int | None, Query(ge=0, le=10**9)]


@router.post("", response_model=None, responses=SSE_RESPONSES, openapi_extra=openapi_operation(ResponseBody))
async def create_response(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Reply to a conversation. The client may ask for a stream, or for a response that runs in the background."""
    chat_request = await read_request(request, relay, caller, "responses", read_response_request)
    if chat_request.background_kind:
        await require_rate(relay, caller)
        return _answer_background_task(chat_request)
    submitted = await submit_or_join(request, chat_request, relay, caller)
    reply = make_reply(relay, chat_request, submitted.turn_id)
    if chat_request.wants_stream and chat_request.has_page:
        return stream_page(relay, reply, chat_request.mode, submitted)
    named = {"x-turn-id": reply.turn_id}
    if chat_request.wants_stream or chat_request.request.metadata[BACKGROUND]:
        turn = await relay.client.reader.read_turn(reply.turn_id, owner=caller.owner)
        if not chat_request.wants_stream:
            return JSONResponse(response_object(turn), headers=named)
        frames = stream_response(relay, turn, caller.owner, reply=reply)
        return StreamingResponse(frames, media_type="text/event-stream", headers=named | SSE_HEADERS)
    del chat_request  # free the memory of the question while waiting for its answer
    return await answer_whole(
        request,
        relay,
        reply,
        lambda turn, used: response_object(turn, used) if turn.success or read_refusal(turn) else None,
        new=submitted.is_new,
    )


def _answer_background_task(chat_request: ChatRequest) -> Response:
    """Return the response to a background request that needs no turn, such as a request for a chat title.

    Open WebUI's merge view parses the stream itself and understands only chunks of chat completions.
    """
    if chat_request.wants_stream and chat_request.from_open_webui:
        return answer_background_task(chat_request)
    turn = Turn(
        turn_id=f"task-{secrets.token_hex(12)}",
        epoch="",
        state=TurnState.FINISHED,
        request=chat_request.request,
        delivery=1,
        outcome=Outcome.PASSED,
        response=answer_task(chat_request.background_kind, chat_request.request.messages),
        created_at=time.time(),
        finished_at=time.time(),
    )
    if not chat_request.wants_stream:
        return JSONResponse(response_object(turn))
    frames = [event_frame(payload["type"], payload) for payload in ResponseEvents(turn).render_rest(turn)]
    return Response(b"".join(frames), media_type="text/event-stream", headers=SSE_HEADERS)


@router.get("/{response_id}", response_model=None, responses=SSE_RESPONSES)
async def show_response(
    response_id: str,
    relay: CurrentRelay,
    owner: VisibleOwner,
    stream_it: StreamParameter = False,
    starting_after: StartingAfterParameter = None,
) -> Response:
    """Return a response, or stream all its events (``stream``), or those after ``starting_after``."""
    turn = await _find_turn(relay, response_id, owner)
    if starting_after is not None:
        if not stream_it:
            raise bad_request("starting_after: only with stream=true", param="starting_after")
        if starting_after > last_number(turn):
            message = f"starting_after: the last event so far has number {last_number(turn)}; got {starting_after}"
            raise bad_request(message, param="starting_after")
    if not stream_it:
        return JSONResponse(response_object(turn, await _read_usage(relay, turn, owner)))
    frames = stream_response(relay, turn, owner, after=-1 if starting_after is None else starting_after)
    return StreamingResponse(frames, media_type="text/event-stream", headers=SSE_HEADERS)


@router.post("/{response_id}/cancel", response_model=None)
async def cancel_response(
    response_id: str, relay: CurrentRelay, owner: VisibleOwner, caller: CurrentCaller
) -> Response:
    """Cancel the turn. Cancelling twice, or cancelling a finished turn, changes nothing."""
    turn = await _find_turn(relay, response_id, owner)
    await carry_out_action(relay.client, CANCEL, turn.turn_id, by=name_caller(caller.owner), owner=owner)
    turn = await relay.client.reader.read_turn(turn.turn_id, owner=owner)
    return JSONResponse(response_object(turn, await _read_usage(relay, turn, owner)))


async def _read_usage(relay: Relay, turn: Turn, owner: str | None) -> TurnUsage | None:
    return await read_usage(relay, turn.turn_id, owner) if turn.state is TurnState.FINISHED else None


async def stream_response(
    relay: Relay, turn: Turn, owner: str | None, *, after: int = -1, reply: Reply | None = None
) -> AsyncIterator[bytes]:
    """Yield the server-sent events of a response that follow the event with number ``after``.

    With ``reply``, also record whether the reader leaves early or reads to the end.
    """
    turn_id, events, whole = turn.turn_id, ResponseEvents(turn), False
    try:
        with relay.readers.track_reader(turn_id):
            async with aclosing(follow_turn(relay, turn_id, owner, patience=relay.settings.suspended_seconds)) as log:
                async for event in log:
                    for payload in events.render(event) if event else ():
                        if payload["sequence_number"] > after:
                            yield event_frame(payload["type"], payload)
                    if event is None:
                        yield PING
            whole = True
            if reply:
                await note_delivery(relay, reply.owner, reply.question_hash, turn_id)
    except Exception as error:
        whole = isinstance(error, SuspendedTooLong)  # dismissed, did not leave
        last = events.render_error(stream_error(error, turn_id, turn.request.locale))
        yield event_frame(last["type"], last)
    finally:
        if reply and reply.has_page and not whole:
            relay.readers.reader_left(turn_id, reply.owner)


async def _find_turn(relay: Relay, response_id: str, owner: str | None) -> Turn:
    if not response_id.startswith(RESPONSE_PREFIX):
        raise TurnNotFound(response_id)
    whole = await find_turn(relay.client.lists, response_id.removeprefix(RESPONSE_PREFIX), owner=owner)
    return await relay.client.reader.read_turn(whole, owner=owner)

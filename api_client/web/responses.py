"""``/v1/responses``: a turn behind OpenAI's Responses API, for text. The hosted background mode, self-hosted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.contract.errors import TurnNotFound
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.web import openapi
from api_client.web.access import Owner
from api_client.web.ask import Ask
from api_client.web.background import answer_task
from api_client.web.body import read_object
from api_client.web.errors import ApiError, bad_request
from api_client.web.following import broken, follow, result
from api_client.web.relay import Relay, RelayOf
from api_client.web.reply import turn_error
from api_client.web.response import PREFIX, ResponseEvents, last_number, response_of
from api_client.web.response_input import BACKGROUND, read_response_ask
from api_client.web.submitting import delivered, submit
from api_client.web.wire import JSON, PING, SSE_HEADERS, SSE_RESPONSES, event_frame

router = APIRouter(prefix="/v1/responses")


@router.post("", response_model=None, responses=SSE_RESPONSES, openapi_extra=openapi.RESPONSE_BODY)
async def create(request: Request, relay: RelayOf, owner: Owner) -> Response:
    """Answer a conversation: at once with ``background``, as a stream with ``stream``, else when the turn has ended."""
    body = await read_object(request, relay.settings.max_body_bytes)
    ask = read_response_ask(body, request.headers, relay.settings, owner)
    if ask.task:
        raise bad_request("background requests of Open WebUI need /v1/chat/completions", code="unsupported_task")
    turn_id = (await submit(ask, relay)).turn_id
    turn = await relay.client.get(turn_id, owner=owner)
    headers = {"x-turn-id": turn_id}
    if ask.stream:
        return StreamingResponse(
            stream(relay, turn, owner, ask=ask), media_type="text/event-stream", headers=headers | SSE_HEADERS
        )
    if ask.request.metadata[BACKGROUND]:
        return JSON(response_of(turn), headers=headers)
    return await _whole(request, relay, ask, turn_id)


async def _whole(request: Request, relay: Relay, ask: Ask, turn_id: str) -> Response:
    """The response after the turn's end. A turn without an answer is an error, as in chat completions."""
    turn = await result(request, relay, turn_id, ask.request.owner, ask.request.locale)
    headers, done = {"x-turn-id": turn_id}, BackgroundTask(delivered, relay, ask, turn_id)
    if turn.outcome is None or not turn.outcome.success:
        error = turn_error(str(turn.outcome or "error"), turn.error, ask.request.locale)
        return JSON(error.body(), error.status, headers | error.headers, background=done)
    return JSON(response_of(turn), headers=headers, background=done)


@router.get("/{response_id}", response_model=None, responses=SSE_RESPONSES)
async def show(
    response_id: str, relay: RelayOf, owner: Owner, stream_it: Streamed = False, starting_after: After = None
) -> Response:
    """The response as it is now, or with ``stream`` its events: all, or those behind number ``starting_after``."""
    turn = await _turn(relay, response_id, owner)
    if starting_after is not None:
        _check_number(starting_after, turn, streamed=stream_it)
    if not stream_it:
        return JSON(response_of(turn))
    frames = stream(relay, turn, owner, after=-1 if starting_after is None else starting_after)
    return StreamingResponse(frames, media_type="text/event-stream", headers=SSE_HEADERS)


@router.post("/{response_id}/cancel", response_model=None)
async def cancel(response_id: str, relay: RelayOf, owner: Owner) -> Response:
    """Call the turn off. Repeating it, or cancelling a finished one, changes nothing."""
    turn = await _turn(relay, response_id, owner)
    return JSON(response_of(await relay.client.cancel(turn.turn_id, owner=owner)))

"""``/v1/models`` and ``/v1/chat/completions``: a turn behind OpenAI's interface, streamed or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar, cast

import structlog
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from api_client.contract.errors import HelixError
from api_client.contract.events import Event
from api_client.web import openapi
from api_client.web.access import Owner
from api_client.web.ask import Ask, known_model, read_ask
from api_client.web.body import read_object
from api_client.web.chunks import model_object
from api_client.web.errors import ApiError, internal_error
from api_client.web.relay import Relay, RelayOf
from api_client.web.reply import Payload, Reply, opening, render, turn_error
from api_client.web.wire import DONE, JSON, PING, SSE_HEADERS, SSE_RESPONSES, data_frame
from api_client.web.words import say

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1")

_T = TypeVar("_T")


@router.get("/models", response_model=None)
async def list_models(relay: RelayOf, _: Owner) -> Response:
    """The models offered here."""
    return JSON({"object": "list", "data": [model_object(model) for model in relay.settings.models]})


@router.get("/models/{model:path}", response_model=None)
async def show_model(model: str, relay: RelayOf, _: Owner) -> Response:
    """One model."""
    return JSON(model_object(known_model(model, relay.settings)))


@router.post("/chat/completions", response_model=None, responses=SSE_RESPONSES, openapi_extra=openapi.CHAT_BODY)
async def complete(request: Request, relay: RelayOf, owner: Owner) -> Response:
    """Answer a conversation. The turn goes on when the caller leaves."""
    ask = await ask_of(request, relay, owner)
    turn_id = await submit(ask, relay)
    reply = Reply(
        turn_id=turn_id,
        model=ask.request.model,
        created=int(time.time()),
        locale=ask.request.locale,
        status=ask.open_webui,
    )
    headers = {"x-turn-id": turn_id}
    if ask.stream:
        frames = stream(relay, reply, owner)
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers | SSE_HEADERS)
    turn = await while_connected(request, relay.client.result(turn_id, owner=owner))
    if turn.outcome is None or not turn.outcome.success:
        error = turn_error(str(turn.outcome or "error"), turn.error, reply.locale)
        return JSON(error.body(), error.status, headers | error.headers)
    return JSON(reply.completion(turn.response), headers=headers)


async def ask_of(request: Request, relay: Relay, owner: str) -> Ask:
    """What the request asks for.

    Raises:
        ApiError: 4xx with the field that is wrong.
    """
    body = await read_object(request, relay.settings.max_body_bytes)
    return read_ask(body, request.headers, relay.settings, owner)


async def submit(ask: Ask, relay: Relay) -> str:
    """Store the turn. Its id, or the earlier turn's for a repeated idempotency key."""
    return await relay.client.submit(ask.request, idempotency_key=ask.idempotency_key)


async def while_connected(request: Request, waiting: Coroutine[Any, Any, _T]) -> _T:
    """Wait for something as long as the caller does. The turn does not care.

    Raises:
        ClientDisconnect: the caller left.
    """
    task = asyncio.create_task(waiting)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def stream(relay: Relay, reply: Reply, owner: str) -> AsyncIterator[bytes]:
    """The reply as Server-Sent Events. It never ends quietly: the last words are the answer's end or an error."""
    for payload in opening(reply):
        yield data_frame(payload)
    try:
        follow = relay.client.follow(reply.turn_id, owner=owner, ping_seconds=relay.settings.ping_seconds)
        async with aclosing(cast("AsyncGenerator[Event | None]", follow)) as events:
            async for event in events:
                for frame in _frames(event, reply):
                    yield frame
                if event is not None and event.final:
                    return
        raise EOFError("the turn's events ended without its end")
    except HelixError as error:
        log.warning("relay.stream_lost", turn_id=reply.turn_id, error=type(error).__name__)
        message = say("stream_lost", reply.locale, turn_id=reply.turn_id)
        for frame in _last_words(ApiError(503, message, code="stream_lost").body()):
            yield frame
    except Exception:
        log.exception("relay.stream_crashed", turn_id=reply.turn_id)
        for frame in _last_words(internal_error(reply.locale).body()):
            yield frame


def _frames(event: Event | None, reply: Reply) -> list[bytes]:
    if event is None:
        return [PING]
    frames = [data_frame(payload) for payload in render(event, reply)]
    return [*frames, DONE] if event.final else frames


def _last_words(error: Payload) -> list[bytes]:
    return [data_frame(error), DONE]

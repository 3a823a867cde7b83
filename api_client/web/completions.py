"""``/v1/models`` and ``/v1/chat/completions``: a turn behind OpenAI's interface, streamed or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.events import Event
from api_client.contract.failpoints import reach
from api_client.web import openapi
from api_client.web.access import Owner
from api_client.web.ask import Ask, known_model, read_ask
from api_client.web.body import read_object
from api_client.web.chunks import model_object
from api_client.web.errors import internal_error, stream_lost, where
from api_client.web.following import RelayStopping, follow, wait_for
from api_client.web.page import Page, page_of
from api_client.web.relay import Relay, RelayOf
from api_client.web.reply import Payload, Reply, opening, turn_error
from api_client.web.wire import DONE, JSON, PING, SSE_HEADERS, SSE_RESPONSES, data_frame

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1")

#: A caller hears within so long that the store is away; the disk may take longer (durability ``power``).
SUBMIT_SECONDS, DISK_SECONDS = 1.8, 2.5


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
        frames = stream(relay, page_of(reply, ask.mode), owner)
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers | SSE_HEADERS)
    try:
        turn = await wait_for(relay, request, relay.client.result(turn_id, owner=owner))
    except (StoreUnavailable, RelayStopping) as lost:
        raise stream_lost(turn_id, reply.locale) from lost
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
    """Store the turn. Its id, or the earlier turn's for a repeated idempotency key.

    Raises:
        StoreUnavailable: there was no answer in time; whether the turn is stored is then not known, and a repeat with
            the same idempotency key finds out. Others as ``TurnsClient.submit``.
    """
    seconds = SUBMIT_SECONDS + (DISK_SECONDS if relay.settings.durability == "power" else 0.0)
    try:
        async with asyncio.timeout(seconds):
            return await relay.client.submit(ask.request, idempotency_key=ask.idempotency_key)
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {seconds:g} s") from error


async def stream(relay: Relay, page: Page, owner: str) -> AsyncIterator[bytes]:
    """The reply as Server-Sent Events. It never ends quietly: the last words are the answer's end or an error."""
    reply = page.reply
    for payload in opening(reply):
        yield data_frame(payload)
    try:
        async with aclosing(follow(relay, reply.turn_id, owner)) as events:
            async for event in events:
                for frame in _frames(event, page):
                    if frame is DONE:
                        reach("B15")
                    yield frame
                if event is not None and event.final:
                    return
        raise EOFError("the turn's events ended without its end")
    except HelixError as error:
        log.warning("relay.stream_lost", turn_id=reply.turn_id, error=type(error).__name__)
        for frame in _last_words(stream_lost(reply.turn_id, reply.locale).body()):
            yield frame
    except Exception as fault:
        log.error("relay.stream_crashed", turn_id=reply.turn_id, **where(fault))
        for frame in _last_words(internal_error(reply.locale).body()):
            yield frame


def _frames(event: Event | None, page: Page) -> list[bytes]:
    if event is None:
        return [PING]
    frames = [data_frame(payload) for payload in page.render(event)]
    return [*frames, DONE] if event.final else frames


def _last_words(error: Payload) -> list[bytes]:
    return [data_frame(error), DONE]

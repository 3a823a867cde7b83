"""``/v1/models`` and ``/v1/chat/completions``: a turn behind OpenAI's interface, streamed or not."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import structlog
from fastapi import APIRouter
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.contract.errors import StoreUnavailable
from api_client.contract.events import RESET, Event
from api_client.contract.failpoints import reach
from api_client.relay_state.sightings import Sighting
from api_client.web.bodies import openapi
from api_client.web.bodies.ask import CHAT_ID_HEADERS, Ask, read_ask
from api_client.web.bodies.body import read_as, size_of
from api_client.web.bodies.fields import known_model
from api_client.web.identity.access import SIGNED_USER, USER_HEADERS, Asker, Caller, Holder
from api_client.web.language import note_locale
from api_client.web.openwebui.background import TASK_HEADER, answer_task
from api_client.web.relay import Relay, RelayOf
from api_client.web.streaming.chunks import model_object
from api_client.web.streaming.following import broken, follow_answer, result
from api_client.web.streaming.page import Page, page_of
from api_client.web.streaming.reply import Payload, Reply, opening, pieces, turn_error
from api_client.web.submitting import delivered, require_rate, submit
from api_client.web.wire import DONE, JSON, PING, SSE_HEADERS, SSE_RESPONSES, data_frame

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1")

#: The user agent of `turns openwebui check`, which is not Open WebUI.
CHECKING = "turns-openwebui-check"


@router.get("/models", response_model=None)
async def list_models(relay: RelayOf, holder: Holder) -> Response:
    """The models offered to the key."""
    settings = holder.settings(relay.settings)
    found = [model_object(model, vision=model in settings.vision_models) for model in settings.models]
    return JSON({"object": "list", "data": found})


@router.get("/models/{model:path}", response_model=None)
async def show_model(model: str, relay: RelayOf, holder: Holder) -> Response:
    """One model."""
    settings = holder.settings(relay.settings)
    return JSON(model_object(known_model(model, settings), vision=model in settings.vision_models))


@router.post("/chat/completions", response_model=None, responses=SSE_RESPONSES, openapi_extra=openapi.CHAT_BODY)
async def complete(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Answer a conversation. The turn goes on when the caller leaves."""
    ask = await ask_of(request, relay, caller)
    if ask.task:
        await require_rate(relay, caller)
        return _task_answer(ask)
    turn = await submit(ask, relay, caller)
    ask = ask.without_text()
    reply = Reply(
        turn_id=turn.turn_id,
        model=ask.request.model,
        created=int(time.time()),
        locale=ask.request.locale,
        status=ask.open_webui,
        pages=relay.settings.public_url.rstrip("/"),
    )
    headers = {"x-turn-id": turn.turn_id}
    if ask.stream:
        frames = stream(relay, ask, page_of(reply, ask.mode), turn.seen)
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers | SSE_HEADERS)
    return await _whole(request, relay, ask, reply)


async def _whole(request: Request, relay: Relay, ask: Ask, reply: Reply) -> Response:
    """The reply in one piece, after the turn's end.

    Raises:
        ApiError: ``stream_lost``.
    """
    turn_id = reply.turn_id
    headers = {"x-turn-id": turn_id}
    turn = await result(request, relay, turn_id, ask.request.owner, reply.locale)
    done = BackgroundTask(delivered, relay, ask, turn_id)
    if turn.outcome is None or not turn.outcome.success:
        error = turn_error(str(turn.outcome or "error"), turn.error, reply.locale)
        return JSON(error.body(), error.status, headers | error.headers, background=done)
    return JSON(reply.completion(turn.response, turn.markers), headers=headers, background=done)


def _task_answer(ask: Ask) -> Response:
    """The answer to a background request; no turn is made."""
    request, answer = ask.request, answer_task(ask.task, ask.request.messages)
    name = f"task-{secrets.token_hex(12)}"
    reply = Reply(turn_id=name, model=request.model, created=int(time.time()), locale=request.locale)
    log.info("relay.task_answered", task=ask.task[:40])
    if not ask.stream:
        return JSON(reply.completion(answer))
    content: list[Payload] = [reply.chunk({"content": piece}) for piece in pieces(answer)]
    frames = [data_frame(payload) for payload in [*opening(reply), *content, reply.chunk({}, "stop")]]
    return Response(b"".join([*frames, DONE]), media_type="text/event-stream", headers=SSE_HEADERS)


async def ask_of(request: Request, relay: Relay, caller: Caller) -> Ask:
    """What the request asks for.

    Raises:
        ApiError: 4xx with the field that is wrong.
    """
    headers, settings = request.headers, caller.settings(relay.settings)

    def make(body: dict[str, Any]) -> tuple[Ask, Sighting]:
        note_locale(request, body)
        return read_ask(body, headers, settings, caller.owner), _sighting(body, headers)

    ask, sighting = await read_as(request, relay.settings.max_body_bytes, make)
    if ask.open_webui and headers.get("user-agent") != CHECKING:
        with suppress(StoreUnavailable):  # worth no error; the turn's submit will tell
            await relay.client.sightings.note(sighting)
    return replace(ask, size=size_of(request))


def _sighting(body: dict[str, Any], headers: Headers) -> Sighting:
    tools = body.get("tools")
    return Sighting(
        task=TASK_HEADER in headers,
        chat=any(headers.get(name) for name in CHAT_ID_HEADERS),
        message=bool(headers.get("x-owui-message-id")),
        user=any(headers.get(name) for name in (*USER_HEADERS, SIGNED_USER)),
        tools=len(tools) if isinstance(tools, list) else 0,
    )


async def stream(relay: Relay, ask: Ask, page: Page, seen: int) -> AsyncIterator[bytes]:
    """The reply as Server-Sent Events. It never ends quietly: the last words are the answer's end or an error.

    ``seen`` is the number of the turn's last event when this reader came: of what was before, it gets the result.
    """
    turn_id, whole = page.reply.turn_id, False
    try:
        with relay.readers.reading(turn_id):
            async with aclosing(_stream(relay, ask, page, seen)) as frames:
                async for frame in frames:
                    yield frame
            whole = True
    finally:
        if ask.page and not whole:
            relay.readers.left(turn_id, ask.request.owner, ask.request.session_id)


async def _stream(relay: Relay, ask: Ask, page: Page, seen: int) -> AsyncGenerator[bytes]:
    reply = page.reply
    for payload in opening(reply):
        yield data_frame(payload)
    try:
        async with aclosing(follow_answer(relay, reply.turn_id, ask.request.owner)) as events:
            async for event in events:
                if event is not None and event.kind == RESET:
                    seen = -1  # that too is news to this reader, and so is all that follows
                for frame in _frames(event, page, seen):
                    if frame is DONE:
                        reach("B15")
                    yield frame
                if event is not None and event.final:
                    await delivered(relay, ask, reply.turn_id)
                    return
        raise EOFError("the turn's events ended without its end")
    except Exception as error:
        yield data_frame(broken(error, reply.turn_id, reply.locale).body())
        yield DONE


def _frames(event: Event | None, page: Page, seen: int) -> list[bytes]:
    if event is None:
        return [PING]
    if event.seq > seen or event.final:
        frames = [data_frame(payload) for payload in page.render(event)]
        return [*frames, DONE] if event.final else frames
    page.skip(event)
    return [data_frame(payload) for payload in page.catch_up()] if event.seq == seen else []

"""``/v1/models`` and ``/v1/chat/completions``: turns behind OpenAI's interface, streamed or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import structlog
from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.errors import StoreUnavailable
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn
from api_client.policies import CallersPolicy
from api_client.relay_state.openwebui_seen import SeenRequest
from api_client.web.bodies.ask import CHAT_ID_HEADERS, Ask, read_ask
from api_client.web.bodies.body import read_as
from api_client.web.bodies.models import TurnBody, known_model, operation
from api_client.web.identity.access import SIGNED_USER, USER_HEADERS, Asker, Caller, Holder
from api_client.web.intake import require_rate, submit
from api_client.web.language import note_locale
from api_client.web.openwebui.background import TASK_HEADER
from api_client.web.relay.relay import Relay, RelayOf
from api_client.web.streaming.chat_stream import page_stream, reply_to, task_answer
from api_client.web.streaming.chunks import model_object
from api_client.web.streaming.following import in_one_piece
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import refusal_of
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.wire import JSON, SSE_RESPONSES

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1")

#: User agent of `turns openwebui check`, which is not Open WebUI.
CHECKING = "turns-openwebui-check"

#: Reads a body, such as ``read_ask``.
ReadAsk: TypeAlias = Callable[[Mapping[str, Any], Headers, Settings, str, CallersPolicy], Ask]


@router.get("/models", response_model=None)
async def list_models(relay: RelayOf, holder: Holder) -> Response:
    """List the models that the key may use."""
    settings = holder.settings(relay.settings)
    found = [model_object(model, vision=settings.of_model(model).vision) for model in settings.models]
    return JSON({"object": "list", "data": found})


@router.get("/models/{model:path}", response_model=None)
async def show_model(model: str, relay: RelayOf, holder: Holder) -> Response:
    """Return one model."""
    settings = holder.settings(relay.settings)
    return JSON(model_object(known_model(model, settings), vision=settings.of_model(model).vision))


@router.post("/chat/completions", response_model=None, responses=SSE_RESPONSES, openapi_extra=operation(TurnBody))
async def complete(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Answer a conversation. The turn goes on if the client disconnects."""
    ask = await ask_of(request, relay, caller)
    if ask.task:
        await require_rate(relay, caller)
        return task_answer(ask)
    turn = await submit(request, ask, relay, caller)
    reply = reply_to(relay, ask, turn.turn_id)
    if ask.stream:
        return page_stream(relay, reply, ask.mode, turn)
    del ask  # free the memory of the question while waiting for its answer

    def whole(turn: Turn, used: TurnUsage) -> Payload | None:
        if turn.outcome is Outcome.REFUSED and not reply.status:
            return reply.completion("", spent=used, refusal=refusal_of(turn.error, reply.locale))
        return reply.completion(turn.response, turn.markers, used) if turn.success else None

    return await in_one_piece(request, relay, reply, whole)


async def ask_of(request: Request, relay: Relay, caller: Caller, route: str = "chat", read: ReadAsk = read_ask) -> Ask:
    """Parse a chat request from an HTTP request; ``route`` is the route's name in policies.

    Raises ``ApiError``: 4xx with the invalid fields.
    """
    headers, settings = request.headers, caller.settings(relay.settings)
    # The store is asked which versions were rolled back.
    policy = CallersPolicy(relay.client.policies, caller.holder, route, await relay.client.flows.active())
    seen: SeenRequest | None = None

    def make(body: dict[str, Any]) -> Ask:
        nonlocal seen
        note_locale(request, body)
        ask = read(body, headers, settings, caller.owner, policy)
        if ask.open_webui and headers.get("user-agent") != CHECKING and route != "responses":
            tools = body.get("tools")
            seen = SeenRequest(
                task=TASK_HEADER in headers,
                chat=any(headers.get(name) for name in CHAT_ID_HEADERS),
                message=bool(headers.get("x-owui-message-id")),
                user=any(headers.get(name) for name in (*USER_HEADERS, SIGNED_USER)),
                tools=len(tools) if isinstance(tools, list) else 0,
            )
        return ask

    ask = await read_as(request, relay.settings.max_body_bytes, make)
    if seen:
        with suppress(StoreUnavailable):  # not worth an error; the submit will report the store's failure
            await relay.client.openwebui_seen.note(seen)
    return ask

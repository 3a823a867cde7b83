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
from api_client.policies.policy_files import CallerPolicy
from api_client.relay_state.openwebui_seen import SeenRequest
from api_client.web.bodies.body import read_body_as
from api_client.web.bodies.chat_request import CHAT_ID_HEADERS, ChatRequest, read_chat_request
from api_client.web.bodies.models import TurnBody, openapi_operation, require_model
from api_client.web.identity.access import SIGNED_USER_HEADER, USER_HEADERS, Caller, CurrentCaller, CurrentKeyHolder
from api_client.web.intake.turn_submission import require_rate, submit_or_join
from api_client.web.language import note_locale
from api_client.web.openwebui.background_tasks import TASK_HEADER
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.streaming.chat_stream import answer_background_task, make_reply, stream_page
from api_client.web.streaming.chunks import model_object
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import refusal_message
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.streaming.turn_following import answer_whole
from api_client.web.wire import SSE_RESPONSES, JSONResponse

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1")

#: User agent of `turns openwebui check`, which is not Open WebUI.
CHECK_USER_AGENT = "turns-openwebui-check"

RequestReader: TypeAlias = Callable[[Mapping[str, Any], Headers, Settings, str, CallerPolicy], ChatRequest]


@router.get("/models", response_model=None)
async def list_models(relay: CurrentRelay, holder: CurrentKeyHolder) -> Response:
    """List the models that the key may use."""
    settings = holder.visible_settings(relay.settings)
    found = [model_object(model, vision=settings.for_model(model).vision) for model in settings.models]
    return JSONResponse({"object": "list", "data": found})


@router.get("/models/{model:path}", response_model=None)
async def show_model(model: str, relay: CurrentRelay, holder: CurrentKeyHolder) -> Response:
    """Return the description of one model."""
    settings = holder.visible_settings(relay.settings)
    return JSONResponse(model_object(require_model(model, settings), vision=settings.for_model(model).vision))


@router.post(
    "/chat/completions", response_model=None, responses=SSE_RESPONSES, openapi_extra=openapi_operation(TurnBody)
)
async def complete_chat(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Reply to a conversation. The turn continues even if the client disconnects."""
    ask = await read_request(request, relay, caller)
    if ask.background_kind:
        await require_rate(relay, caller)
        return answer_background_task(ask)
    submitted = await submit_or_join(request, ask, relay, caller)
    reply = make_reply(relay, ask, submitted.turn_id)
    if ask.wants_stream:
        return stream_page(relay, reply, ask.mode, submitted)
    del ask  # free the memory of the question while waiting for its answer

    def make_completion(turn: Turn, used: TurnUsage) -> Payload | None:
        if turn.outcome is Outcome.REFUSED and not reply.from_open_webui:
            return reply.make_completion("", spent=used, refusal=refusal_message(turn.error, reply.locale))
        return reply.make_completion(turn.response, turn.markers, used) if turn.success else None

    return await answer_whole(request, relay, reply, make_completion, new=submitted.is_new)


async def read_request(
    request: Request, relay: Relay, caller: Caller, route: str = "chat", parse: RequestReader = read_chat_request
) -> ChatRequest:
    """Read the body of an HTTP request with ``parse``, and return the chat request for the policy of this ``route``.

    Raises ``ApiError``: 4xx with the invalid fields.
    """
    headers, settings = request.headers, caller.visible_settings(relay.settings)
    policy = CallerPolicy(relay.client.policies, caller.key_owner_name, route, await relay.client.flows.read_active())
    seen: SeenRequest | None = None

    def read_body(body: dict[str, Any]) -> ChatRequest:
        nonlocal seen
        note_locale(request, body)
        ask = parse(body, headers, settings, caller.owner, policy)
        if ask.from_open_webui and headers.get("user-agent") != CHECK_USER_AGENT and route != "responses":
            tools = body.get("tools")
            seen = SeenRequest(
                task=TASK_HEADER in headers,
                chat=any(headers.get(name) for name in CHAT_ID_HEADERS),
                message=bool(headers.get("x-owui-message-id")),
                user=any(headers.get(name) for name in (*USER_HEADERS, SIGNED_USER_HEADER)),
                tools=len(tools) if isinstance(tools, list) else 0,
            )
        return ask

    ask = await read_body_as(request, relay.settings.max_body_bytes, read_body)
    if seen:
        with suppress(StoreUnavailable):  # not worth an error; the submit will report the store's failure
            await relay.client.openwebui_seen.record_request(seen)
    return ask

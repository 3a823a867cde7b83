"""``/v1/pauses``: start and end pauses."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.order_log import name_caller
from api_client.pauses.pause import WHATS, Pause
from api_client.resources.pauses import PAUSES
from api_client.web.bodies.body import read_object
from api_client.web.bodies.body_model import Body
from api_client.web.bodies.models import openapi_operation, read_model_body
from api_client.web.errors import bad_request
from api_client.web.identity.access import Caller, CurrentCaller, require_operator
from api_client.web.relay.relay import CurrentRelay
from api_client.web.wire import JSONResponse

router = APIRouter()
_SECONDS = "a number of seconds"


class PauseBody(Body):
    """The JSON body of a request that starts a pause (``/v1/pauses``)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["what"]})

    what: Annotated[str | None, WithJsonSchema({"enum": list(WHATS)})] = None
    name: str | None = None
    reason: str | None = None
    seconds: float | None = Field(None, ge=0, le=1e11, description=_SECONDS)
    until: float | None = Field(None, ge=0, le=1e11, description=_SECONDS)


@router.post(PAUSES.api, response_model=None, openapi_extra=openapi_operation(PauseBody))
async def start_pause(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Start a pause. Repeating the request replaces the reason and the end."""
    require_operator(caller, PAUSES.doing)
    body = read_model_body(PauseBody, await read_object(request, relay.settings.max_body_bytes))
    if body.seconds and body.until:
        raise bad_request("seconds or until, not both", param="until")
    begun = Pause(
        what=body.what or "",
        name=body.name or "",
        reason=body.reason or "",
        until=body.until or 0.0,
        by=name_caller(caller.owner),
    )
    return JSONResponse((await relay.client.pauses.set_pause(begun, seconds=body.seconds or 0.0)).to_dict(), 201)


@router.delete(PAUSES.api + "/{what}", response_model=None)
async def resume_intake(what: str, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Resume the intake, so that new turns are accepted again."""
    return await _end_pause(what, "", relay, caller)


@router.delete(PAUSES.api + "/{what}/{name:path}", response_model=None)
async def end_pause(what: str, name: str, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """End a pause; for a model, also close its circuit breaker. Ending a pause twice is harmless."""
    return await _end_pause(what, name, relay, caller)


async def _end_pause(what: str, name: str, relay: CurrentRelay, caller: Caller) -> Response:
    require_operator(caller, PAUSES.doing)
    ended = await relay.client.pauses.end_pause(what, name, by=name_caller(caller.owner))
    return JSONResponse({"what": what, "name": name, "resumed": ended})

"""``/v1/pauses``: what is paused, and pausing and resuming. Everybody with a key may look; operators change."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.audit import by_key
from api_client.pauses.pause import Pause
from api_client.web.bodies.body import read_object
from api_client.web.bodies.models import PauseBody, operation, read
from api_client.web.errors import bad_request
from api_client.web.identity.access import Asker, Caller, require_operator
from api_client.web.relay import RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/pauses")


@router.get("", response_model=None)
async def list_pauses(relay: RelayOf, caller: Asker) -> Response:
    """What is paused, and which breakers are open. Keys, owners and who paused it are shown to operators only."""
    found = await relay.client.pauses.in_force()
    if not caller.operator:
        found = [each for each in found if each.what not in {"key", "owner"}]
    data = [each.to_dict() if caller.operator else {**each.to_dict(), "by": ""} for each in found]
    return JSON({"object": "list", "data": data, "held_turns": await relay.client.pauses.held()})


@router.post("", response_model=None, openapi_extra=operation(PauseBody))
async def pause(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Pause something. Again: the new reason and end count."""
    require_operator(caller, "pauses and resumes")
    body = read(PauseBody, await read_object(request, relay.settings.max_body_bytes))
    if body.seconds and body.until:
        raise bad_request("seconds or until, not both", param="until")
    begun = Pause(
        what=body.what or "",
        name=body.name or "",
        reason=body.reason or "",
        until=body.until or 0.0,
        by=by_key(caller.owner),
    )
    return JSON((await relay.client.pauses.pause(begun, seconds=body.seconds or 0.0)).to_dict(), 201)


@router.delete("/{what}", response_model=None)
async def resume_intake(what: str, relay: RelayOf, caller: Asker) -> Response:
    """End the pause of the intake."""
    return await _resume(what, "", relay, caller)


@router.delete("/{what}/{name:path}", response_model=None)
async def resume(what: str, name: str, relay: RelayOf, caller: Asker) -> Response:
    """End a pause; of a model also its open breaker. What was not paused stays so."""
    return await _resume(what, name, relay, caller)


async def _resume(what: str, name: str, relay: RelayOf, caller: Caller) -> Response:
    require_operator(caller, "pauses and resumes")
    ended = await relay.client.pauses.resume(what, name, by=by_key(caller.owner))
    return JSON({"what": what, "name": name, "resumed": ended})

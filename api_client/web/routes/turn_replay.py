"""``POST /v1/turns/{turn_id}/replay``: submit a finished turn again."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.order_log import name_caller
from api_client.turn_actions.replay import ReplayAction
from api_client.web.bodies.body import has_body, read_object
from api_client.web.bodies.body_model import Body
from api_client.web.bodies.models import openapi_operation, read_model_body
from api_client.web.identity.access import CurrentCaller, NamedTurnId, VisibleOwner
from api_client.web.intake.caller_actions import act_for_caller
from api_client.web.relay.relay import CurrentRelay
from api_client.web.wire import JSONResponse

router = APIRouter(prefix="/v1/turns")


class ReplayBody(Body):
    """The body of a request to replay a turn, optionally with another model or message."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    message: str | None = Field(None, pattern=r"\S")


@router.post("/{turn_id}/replay", response_model=None, status_code=202, openapi_extra=openapi_operation(ReplayBody))
async def replay_turn(
    turn_id: NamedTurnId, request: Request, relay: CurrentRelay, owner: VisibleOwner, caller: CurrentCaller
) -> Response:
    """Submit a finished turn again as a new turn, with the same or another ``model`` and ``message``.

    Repeating the same request creates no second turn.
    """
    asked = read_model_body(
        ReplayBody, await read_object(request, relay.settings.max_body_bytes) if has_body(request) else {}
    )
    action = ReplayAction(model=asked.model or "", prompt=asked.message or "")
    done = await act_for_caller(relay, action, turn_id, caller=caller, turn_owner=owner, by=name_caller(caller.owner))
    url = f"/v1/turns/{done.new_turn_id}"
    body = {"object": "turn", "turn_id": done.new_turn_id, "replay_of": turn_id, "url": url}
    return JSONResponse({**body, "events_url": f"{url}/events"}, 202, {"x-turn-id": done.new_turn_id, "location": url})

"""``/v1/notifications/dead``: resend or drop undeliverable notifications."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.order_log import name_caller
from api_client.resources.notifications import GIVEN_UP
from api_client.web.bodies.body import read_object
from api_client.web.bodies.body_model import Body
from api_client.web.bodies.models import openapi_operation, read_model_body
from api_client.web.errors import bad_request
from api_client.web.identity.access import Caller, CurrentCaller, require_operator
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.wire import JSONResponse

router = APIRouter()


class NotificationsBody(Body):
    """The body of requests to resend or drop notifications: those in ``notification_ids``, or all."""

    model_config = ConfigDict(extra="forbid")

    notification_ids: list[str] | None = Field(None, description="a list of texts")
    all: bool | None = None


@router.post(GIVEN_UP.api + "/resend", response_model=None, openapi_extra=openapi_operation(NotificationsBody))
async def resend_notifications(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Queue all given undeliverable notifications again, or none of them if one cannot be queued."""
    named = await _read_selection(request, relay, caller)
    return JSONResponse({"resent": await relay.client.notifications.send_again(named, by=name_caller(caller.owner))})


@router.post(GIVEN_UP.api + "/drop", response_model=None, openapi_extra=openapi_operation(NotificationsBody))
async def drop_notifications(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Delete undeliverable notifications."""
    named = await _read_selection(request, relay, caller)
    return JSONResponse({"dropped": await relay.client.notifications.drop(named, by=name_caller(caller.owner))})


async def _read_selection(request: Request, relay: Relay, caller: Caller) -> list[str]:
    require_operator(caller, GIVEN_UP.doing)
    body = read_model_body(NotificationsBody, await read_object(request, relay.settings.max_body_bytes))
    if bool(body.notification_ids) == bool(body.all):
        raise bad_request('name notifications in notification_ids, or send {"all": true}', param="notification_ids")
    return body.notification_ids or []

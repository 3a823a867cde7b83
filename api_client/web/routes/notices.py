"""``/v1/notices``: calls for help that wait or were given up, sending those again and dropping them. For operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api_client.audit import by_key
from api_client.contract.values.notices import Entry
from api_client.web.bodies.body import read_object
from api_client.web.bodies.models import NoticesBody, operation, read
from api_client.web.errors import bad_request
from api_client.web.identity.access import Asker, Caller, require_operator
from api_client.web.relay import Relay, RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/notices")

#: Notices in one answer, at most.
_MOST = 1000
Limit = Annotated[int, Query(ge=1, le=_MOST)]


@router.get("", response_model=None)
async def list_waiting(relay: RelayOf, caller: Asker, limit: Limit = 100) -> Response:
    """What is waiting to be sent, the next one first."""
    _require_reader(caller)
    return await _listed(relay, await relay.client.notices.waiting(limit))


@router.get("/dead", response_model=None)
async def list_given_up(relay: RelayOf, caller: Asker, limit: Limit = 100) -> Response:
    """What nobody took for a day, the newest first."""
    _require_reader(caller)
    return await _listed(relay, await relay.client.notices.given_up(limit))


@router.post("/dead/resend", response_model=None, openapi_extra=operation(NoticesBody))
async def resend(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Send notices that were given up for another day, under the same ids. All of them or none."""
    require_operator(caller, "reads, sends and drops notices")
    named = await _named(request, relay)
    return JSON({"resent": await relay.client.notices.send_again(named, by=by_key(caller.owner))})


@router.post("/dead/drop", response_model=None, openapi_extra=operation(NoticesBody))
async def drop(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Take notices off the list of those that were given up."""
    require_operator(caller, "reads, sends and drops notices")
    named = await _named(request, relay)
    return JSON({"dropped": await relay.client.notices.drop(named, by=by_key(caller.owner))})


async def _listed(relay: Relay, entries: list[Entry]) -> Response:
    counts = await relay.client.notices.counts()
    data = [{"object": "notice", **entry.to_dict()} for entry in entries]
    return JSON({"object": "list", "data": data, "waiting": counts.waiting, "given_up": counts.given_up})


async def _named(request: Request, relay: Relay) -> list[str]:
    """The notices that a body names; none: it says ``all``."""
    body = read(NoticesBody, await read_object(request, relay.settings.max_body_bytes))
    if bool(body.notice_ids) == bool(body.all):
        raise bad_request('name notices in notice_ids, or send {"all": true}', param="notice_ids")
    return body.notice_ids or []


def _require_reader(caller: Caller) -> None:
    """As on the page: without keys, this machine may look."""
    if not caller.keyless:
        require_operator(caller, "reads, sends and drops notices")

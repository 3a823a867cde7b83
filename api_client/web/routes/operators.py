"""The operators' nouns (``api_client/nouns.py``): ``GET`` of each, and what is done to pauses, notices and workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api_client.actions import order_worker
from api_client.contract.counters import label
from api_client.contract.orders import name_caller
from api_client.contract.worker_order import WorkerOrder
from api_client.nouns import GIVEN_UP, NOUNS, PAUSES, WORKERS, Noun, Viewer
from api_client.pauses.pause import Pause
from api_client.web.bodies.body import read_object
from api_client.web.bodies.models import NoticesBody, PauseBody, operation, read
from api_client.web.errors import bad_request
from api_client.web.identity.access import Asker, Caller, Holder, MayReadMetrics, require_operator
from api_client.web.relay.relay import Relay, RelayOf
from api_client.web.wire import JSON

router = APIRouter()

#: Rows in one answer, at most.
_MOST = 1000


def _list(noun: Noun[Any]) -> Callable[..., Awaitable[Response]]:

    async def listed(relay: RelayOf, caller: Asker) -> Response:
        return await _listed(noun, relay, caller, -1)

    async def figures(relay: RelayOf, holder: Holder) -> Response:
        return await _listed(noun, relay, holder, -1)

    async def limited(relay: RelayOf, caller: Asker, limit: Annotated[int, Query(ge=1, le=_MOST)] = 100) -> Response:
        return await _listed(noun, relay, caller, limit)

    return figures if noun.figures else limited if noun.limited else listed


async def _listed(noun: Noun[Any], relay: Relay, caller: Caller, most: int) -> Response:
    if noun.private and not caller.keyless:  # as on the page: without keys, this machine may look
        require_operator(caller, noun.doing)
    rows, facts = await noun.read(relay.client, most)
    scopes = frozenset({f"owner:{caller.owner}", f"key:{label(caller.holder)}"})
    viewer = Viewer(operator=caller.operator, metrics=caller.metrics, scopes=scopes)
    kind = {"object": noun.kind} if noun.kind else {}
    seen = [each for row in rows if (each := noun.shown(row, viewer)) is not None]
    return JSON({"object": "list", "data": [{**kind, **each.to_dict()} for each in seen], **facts})


def add(to: APIRouter, noun: Noun[Any]) -> None:
    """Give a noun its ``GET``."""
    to.add_api_route(
        noun.api,
        _list(noun),
        name=noun.called,
        description=noun.about,
        dependencies=[MayReadMetrics] if noun.figures else None,
        response_model=None,
    )


for _noun in NOUNS:
    add(router, _noun)


@router.post(PAUSES.api, response_model=None, openapi_extra=operation(PauseBody))
async def pause(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Pause something. Again: the new reason and end count."""
    require_operator(caller, PAUSES.doing)
    body = read(PauseBody, await read_object(request, relay.settings.max_body_bytes))
    if body.seconds and body.until:
        raise bad_request("seconds or until, not both", param="until")
    begun = Pause(
        what=body.what or "",
        name=body.name or "",
        reason=body.reason or "",
        until=body.until or 0.0,
        by=name_caller(caller.owner),
    )
    return JSON((await relay.client.pauses.pause(begun, seconds=body.seconds or 0.0)).to_dict(), 201)


@router.delete(PAUSES.api + "/{what}", response_model=None)
async def resume_intake(what: str, relay: RelayOf, caller: Asker) -> Response:
    """End the pause of the intake."""
    return await _resume(what, "", relay, caller)


@router.delete(PAUSES.api + "/{what}/{name:path}", response_model=None)
async def resume(what: str, name: str, relay: RelayOf, caller: Asker) -> Response:
    """End a pause; of a model also its open breaker. What was not paused stays so."""
    return await _resume(what, name, relay, caller)


async def _resume(what: str, name: str, relay: RelayOf, caller: Caller) -> Response:
    require_operator(caller, PAUSES.doing)
    ended = await relay.client.pauses.resume(what, name, by=name_caller(caller.owner))
    return JSON({"what": what, "name": name, "resumed": ended})


@router.post(GIVEN_UP.api + "/resend", response_model=None, openapi_extra=operation(NoticesBody))
async def resend(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Send notices that were given up for another day, under the same ids. All of them or none."""
    named = await _named(request, relay, caller)
    return JSON({"resent": await relay.client.notices.send_again(named, by=name_caller(caller.owner))})


@router.post(GIVEN_UP.api + "/drop", response_model=None, openapi_extra=operation(NoticesBody))
async def drop(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Take notices off the list of those that were given up."""
    named = await _named(request, relay, caller)
    return JSON({"dropped": await relay.client.notices.drop(named, by=name_caller(caller.owner))})


async def _named(request: Request, relay: Relay, caller: Caller) -> list[str]:
    """The notices that an operator's body names; none: it says ``all``."""
    require_operator(caller, GIVEN_UP.doing)
    body = read(NoticesBody, await read_object(request, relay.settings.max_body_bytes))
    if bool(body.notice_ids) == bool(body.all):
        raise bad_request('name notices in notice_ids, or send {"all": true}', param="notice_ids")
    return body.notice_ids or []


@router.post(WORKERS.api + "/{name}/{order}", response_model=None)
async def order(name: str, order: WorkerOrder, relay: RelayOf, caller: Asker) -> Response:
    """Order a worker to take nothing new (quiet), to end when idle (drain) or now (stop), or to go on (resume)."""
    require_operator(caller, WORKERS.doing)
    whole = await order_worker(relay.client, name, order, by=name_caller(caller.owner))
    return JSON({"object": "worker", "name": whole, "order": order.value})

"""``GET`` routes for the resources that operators list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from api_client.contract.counters import clean_label
from api_client.resources.registry import RESOURCES
from api_client.resources.resource import Resource, Viewer
from api_client.web.identity.access import (
    Caller,
    CurrentCaller,
    CurrentKeyHolder,
    RequireMetricsRight,
    require_operator,
)
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.wire import JSONResponse

router = APIRouter()

_MAX_ROWS = 1000


def _make_list_route(resource: Resource[Any]) -> Callable[..., Awaitable[Response]]:

    async def list_all(relay: CurrentRelay, caller: CurrentCaller) -> Response:
        return await _answer_rows(resource, relay, caller, -1)

    async def list_figures(relay: CurrentRelay, holder: CurrentKeyHolder) -> Response:
        return await _answer_rows(resource, relay, holder, -1)

    async def list_limited(
        relay: CurrentRelay, caller: CurrentCaller, limit: Annotated[int, Query(ge=1, le=_MAX_ROWS)] = 100
    ) -> Response:
        return await _answer_rows(resource, relay, caller, limit)

    return list_figures if resource.figures else list_limited if resource.limited else list_all


async def _answer_rows(resource: Resource[Any], relay: Relay, caller: Caller, most: int) -> Response:
    if resource.private and not caller.keyless:  # as on the page: without keys, this machine may look
        require_operator(caller, resource.doing)
    rows, facts = await resource.read(relay.client, most)
    scopes = frozenset({f"owner:{caller.owner}", f"key:{clean_label(caller.key_owner_name)}"})
    viewer = Viewer(operator=caller.is_operator, metrics=caller.may_read_metrics, scopes=scopes)
    kind = {"object": resource.kind} if resource.kind else {}
    seen = [each for row in rows if (each := resource.shown(row, viewer)) is not None]
    return JSONResponse({"object": "list", "data": [{**kind, **each.to_dict()} for each in seen], **facts})


def add_resource(to_router: APIRouter, resource: Resource[Any]) -> None:
    to_router.add_api_route(
        resource.api,
        _make_list_route(resource),
        name=resource.called,
        description=resource.about,
        dependencies=[RequireMetricsRight] if resource.figures else None,
        response_model=None,
    )


for _resource in RESOURCES:
    add_resource(router, _resource)

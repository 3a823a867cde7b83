"""``GET`` routes for the resources that operators list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from api_client.contract.counters import label
from api_client.resources.registry import RESOURCES
from api_client.resources.resource import Resource, Viewer
from api_client.web.identity.access import Asker, Caller, Holder, MayReadMetrics, require_operator
from api_client.web.relay.relay import Relay, RelayOf
from api_client.web.wire import JSON

router = APIRouter()

_MOST = 1000


def _list(resource: Resource[Any]) -> Callable[..., Awaitable[Response]]:

    async def listed(relay: RelayOf, caller: Asker) -> Response:
        return await _listed(resource, relay, caller, -1)

    async def figures(relay: RelayOf, holder: Holder) -> Response:
        return await _listed(resource, relay, holder, -1)

    async def limited(relay: RelayOf, caller: Asker, limit: Annotated[int, Query(ge=1, le=_MOST)] = 100) -> Response:
        return await _listed(resource, relay, caller, limit)

    return figures if resource.figures else limited if resource.limited else listed


async def _listed(resource: Resource[Any], relay: Relay, caller: Caller, most: int) -> Response:
    if resource.private and not caller.keyless:  # as on the page: without keys, this machine may look
        require_operator(caller, resource.doing)
    rows, facts = await resource.read(relay.client, most)
    scopes = frozenset({f"owner:{caller.owner}", f"key:{label(caller.holder)}"})
    viewer = Viewer(operator=caller.operator, metrics=caller.metrics, scopes=scopes)
    kind = {"object": resource.kind} if resource.kind else {}
    seen = [each for row in rows if (each := resource.shown(row, viewer)) is not None]
    return JSON({"object": "list", "data": [{**kind, **each.to_dict()} for each in seen], **facts})


def add_resource(to: APIRouter, resource: Resource[Any]) -> None:
    """Add the ``GET`` route that lists a resource to a router."""
    to.add_api_route(
        resource.api,
        _list(resource),
        name=resource.called,
        description=resource.about,
        dependencies=[MayReadMetrics] if resource.figures else None,
        response_model=None,
    )


for _resource in RESOURCES:
    add_resource(router, _resource)

"""The pages that list resources for operators."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.api_keys import with_names
from api_client.resources.registry import PAGES
from api_client.resources.resource import Button, CellContext, Resource, ResourcePage
from api_client.web.identity.access import require_operator
from api_client.web.pages.render import page_router, see_other, visited
from api_client.web.pages.visitor import Form, OverseerOf, VisitorOf
from api_client.web.relay.relay import RelayOf

router = page_router()
_ROWS = 100


def _show(page: ResourcePage) -> Callable[..., Awaitable[Response]]:
    async def show(request: Request, relay: RelayOf, visitor: OverseerOf) -> Response:
        return visited(
            page.template,
            request,
            visitor,
            page_of=page,
            tables=[(each, *await each.read(relay.client, _ROWS)) for each in page.resources],
            context=CellContext(time.time(), with_names(relay.settings.keys_path)),
            refresh=page.refresh_seconds,
            **await page.more(relay.client),
        )

    return show


def _press(page: ResourcePage, resource: Resource[Any], button: Button[Any]) -> Callable[..., Awaitable[Response]]:

    async def press(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
        require_operator(visitor.caller, resource.doing)
        await button.act(relay.client, form, visitor.name)
        return see_other(page.address)

    return press


def add_page(to: APIRouter, page: ResourcePage) -> None:
    """Add the routes of a resource page and of its buttons to a router."""
    if page.template:
        to.add_api_route(page.address, _show(page))
    for resource in page.resources:
        for button in resource.buttons:
            to.add_api_route(f"{page.address}/{button.name}", _press(page, resource, button), methods=["POST"])


for _page in PAGES:
    add_page(router, _page)

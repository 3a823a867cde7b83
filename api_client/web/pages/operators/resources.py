"""The pages that list resources for operators."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.api_keys import make_owner_namer
from api_client.resources.registry import PAGES
from api_client.resources.resource import Button, CellContext, Resource, ResourcePage
from api_client.web.identity.access import require_operator
from api_client.web.pages.rendering import page_router, redirect, render_for_visitor
from api_client.web.pages.visitor import CheckedForm, CurrentOverseer, CurrentVisitor
from api_client.web.relay.relay import CurrentRelay

router = page_router()
_ROWS = 100


def _make_page_route(page: ResourcePage) -> Callable[..., Awaitable[Response]]:
    async def show_page(request: Request, relay: CurrentRelay, visitor: CurrentOverseer) -> Response:
        return render_for_visitor(
            page.template,
            request,
            visitor,
            page_of=page,
            tables=[(each, *await each.read(relay.client, _ROWS)) for each in page.resources],
            context=CellContext(time.time(), make_owner_namer(relay.settings.keys_path)),
            refresh=page.refresh_seconds,
            **await page.more(relay.client),
        )

    return show_page


def _make_button_route(
    page: ResourcePage, resource: Resource[Any], button: Button[Any]
) -> Callable[..., Awaitable[Response]]:

    async def press_button(relay: CurrentRelay, visitor: CurrentVisitor, form: CheckedForm) -> Response:
        require_operator(visitor.caller, resource.doing)
        await button.act(relay.client, form, visitor.actor_name)
        return redirect(page.address)

    return press_button


def add_page(to: APIRouter, page: ResourcePage) -> None:
    if page.template:
        to.add_api_route(page.address, _make_page_route(page))
    for resource in page.resources:
        for button in resource.buttons:
            to.add_api_route(
                f"{page.address}/{button.name}", _make_button_route(page, resource, button), methods=["POST"]
            )


for _page in PAGES:
    add_page(router, _page)

"""What every page's address has in common: errors are pages too, and the headers are always there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.words.store_refusals import Refusal
from api_client.web.errors import ApiError, from_contract
from api_client.web.pages.render import HEADERS, page
from api_client.web.pages.visitor import NotSignedIn, Visitor, set_cookie, sign_in_address
from api_client.web.relay import relay_of


class _PageRoute(APIRoute):
    """A route whose errors are pages too, and whose every answer has the pages' headers."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """The handler, with errors answered."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response: Response = await handle(request)
            except NotSignedIn as refused:
                response = see_other(sign_in_address(refused.back))
            except ApiError as error:
                response = error_page(error)
            except HelixError as error:
                refusal = error.refusal if isinstance(error, StoreUnavailable) else None
                response = error_page(from_contract(error, relay_of(request).settings.locale), refusal)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


def page_router() -> APIRouter:
    """A router for pages. They are not part of the API's description."""
    return APIRouter(route_class=_PageRoute, include_in_schema=False)


def visited(template: str, request: Request, visitor: Visitor, **values: Any) -> Response:
    """A page for a visitor, with the cookie for a new one."""
    response = page(template, visitor=visitor, path=request.url.path, **values)
    if visitor.new:
        set_cookie(request, response, visitor.token)
    return response


def see_other(address: str) -> Response:
    """Lead the browser to another address."""
    return RedirectResponse(address, 303)


def error_page(error: ApiError, refusal: Refusal | None = None) -> Response:
    """An error as a page."""
    return page(
        "error.html", error.status, error.headers, error=error, refusal=refusal, visitor=None, refresh=0, path=""
    )

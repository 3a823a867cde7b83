"""Signing in and out."""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.web.identity.access import needs_key
from api_client.web.identity.origin import require_local
from api_client.web.pages.page_route import page_router, see_other
from api_client.web.pages.render import page
from api_client.web.pages.visitor import COOKIE, Form, VisitorOf, form_of, own_path, set_cookie, sign_in
from api_client.web.relay import Relay, RelayOf

log = structlog.get_logger(__name__)

router = page_router()


@router.get("/sign-in")
async def sign_in_page(request: Request, relay: RelayOf, next: str = "") -> Response:  # noqa: A002 the field's name
    """The form for the key, or where no keys are configured for the operator's token."""
    return _sign_in_form(request, relay, own_path(next))


@router.post("/sign-in")
async def take_key(request: Request, relay: RelayOf) -> Response:
    """Exchange a key for a cookie. Who was wrong too often has to wait, whatever the key."""
    if not needs_key(relay):
        require_local(request)
    fields = await form_of(request)
    back, address = own_path(fields.get("next", "")), request.client.host if request.client else ""
    relay.guesses.require(address)
    token = await sign_in(relay, fields.get("key", "").strip())
    if token is None:
        relay.guesses.wrong(address)
        log.warning("page.sign_in_refused")
        return _sign_in_form(request, relay, back, wrong=True)
    log.info("page.signed_in")
    response = see_other(back)
    set_cookie(request, response, token)
    return response


def _sign_in_form(request: Request, relay: Relay, back: str, *, wrong: bool = False) -> Response:
    return page(
        "sign_in.html",
        403 if wrong else 200,
        back=back,
        wrong=wrong,
        keyless=not needs_key(relay),
        visitor=None,
        refresh=0,
        path=request.url.path,
    )


@router.post("/sign-out")
async def sign_out(relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Forget the browser."""
    await relay.client.sign_ins.forget(visitor.token)
    response = see_other("/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response

"""The pages of sign-in and sign-out."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.web.identity.access import requires_key
from api_client.web.identity.origin import require_local
from api_client.web.pages.provider_sign_in import START_PATH
from api_client.web.pages.rendering import page_router, redirect, render_page
from api_client.web.pages.sealed_sign_in import is_sealed
from api_client.web.pages.visitor import (
    COOKIE,
    CheckedForm,
    CurrentVisitor,
    create_sign_in,
    read_form,
    require_own_path,
    set_cookie,
)
from api_client.web.relay.relay import CurrentRelay, Relay

log = structlog.get_logger(__name__)

router = page_router()


@router.get("/sign-in")
async def show_sign_in(request: Request, relay: CurrentRelay, next: str = "", signed_out: str = "") -> Response:  # noqa: A002 the field's name
    """Show the ways to sign in: with the provider, or with an API key or the operator's token."""
    return _render_sign_in(request, relay, require_own_path(next), signed_out=bool(signed_out))


@router.post("/sign-in")
async def take_key(request: Request, relay: CurrentRelay) -> Response:
    """Sign a visitor in with an API key by setting a cookie, or show the form again for a wrong key."""
    if not requires_key(relay):
        require_local(request)
    fields = await read_form(request)
    back, address = require_own_path(fields.get("next", "")), request.client.host if request.client else ""
    relay.key_guesses.require_attempt(address)
    token = await create_sign_in(relay, fields.get("key", "").strip())
    if token is None:
        relay.key_guesses.count_wrong(address)
        log.warning("page.sign_in_refused")
        return _render_sign_in(request, relay, back, wrong=True)
    log.info("page.signed_in")
    response = redirect(back)
    set_cookie(request, response, token)
    return response


def _render_sign_in(
    request: Request, relay: Relay, back: str, *, wrong: bool = False, signed_out: bool = False
) -> Response:
    settings = relay.settings
    return render_page(
        "sign_in.html",
        403 if wrong else 200,
        back=back,
        wrong=wrong,
        signed_out=signed_out,
        keyless=not requires_key(relay),
        provider=urlsplit(settings.oidc_issuer).netloc,
        start=f"{settings.public_url.rstrip('/')}{START_PATH}?next={quote(back, safe='')}",
        path=request.url.path,
    )


@router.post("/sign-out")
async def sign_out(relay: CurrentRelay, visitor: CurrentVisitor, _form: CheckedForm) -> Response:
    """Sign the visitor out by deleting the sign-in and its cookie."""
    if not is_sealed(visitor.token):
        await relay.client.sign_ins.sign_out(visitor.token)
    response = redirect("/sign-in?signed_out=yes" if visitor.caller.person else "/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response

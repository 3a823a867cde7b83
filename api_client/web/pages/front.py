"""The first page, the overview, sign-in and sign-out, and the static files of all pages."""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.figures.figures import SPANS
from api_client.overview import read_overview
from api_client.web.errors import ApiError
from api_client.web.identity.access import requires_key
from api_client.web.identity.origin import require_local
from api_client.web.pages.chart import chart_outcomes, chart_rejection_rate
from api_client.web.pages.rendering import ASSETS, VERSION, page_router, redirect, render_for_visitor, render_page
from api_client.web.pages.visitor import (
    COOKIE,
    CheckedForm,
    CurrentOverseer,
    CurrentVisitor,
    create_sign_in,
    read_form,
    require_own_path,
    set_cookie,
)
from api_client.web.relay.relay import CurrentRelay, Relay

_ROWS = 8
_REFRESH_SECONDS = 5

router = page_router()


@router.get("/")
async def open_first_page(visitor: CurrentVisitor) -> Response:
    """Redirect operators to the overview, and other visitors to the list of their turns."""
    return redirect("/turns" if visitor.owner else "/overview")


@router.get("/overview")
async def show_overview(request: Request, relay: CurrentRelay, visitor: CurrentOverseer, span: str = "24h") -> Response:
    """Show operators the overview page of the installation, with statistics over ``span``."""
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    seen = await read_overview(relay.client, span, rows=_ROWS)
    pieces = seen.figures.pieces
    return render_for_visitor(
        "overview.html",
        request,
        visitor,
        seen=seen,
        figures=seen.figures,
        total=seen.figures.whole.total,
        spans=SPANS,
        columns=chart_outcomes(pieces),
        rules=[(row, chart_rejection_rate(pieces, row.name)) for row in seen.figures.rules],
        refresh=_REFRESH_SECONDS,
    )


@router.get("/favicon.ico")
async def send_icon() -> Response:
    """Redirect browsers that ask for ``/favicon.ico`` to the icon's real address."""
    return redirect(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def send_asset(version: str, name: str) -> Response:
    """Serve a static file that browsers may cache for ever, because its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})


log = structlog.get_logger(__name__)


@router.get("/sign-in")
async def show_sign_in(request: Request, relay: CurrentRelay, next: str = "") -> Response:  # noqa: A002 the field's name
    """Show the sign-in form, which asks for an API key or for the operator's token."""
    return _render_sign_in(request, relay, require_own_path(next))


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


def _render_sign_in(request: Request, relay: Relay, back: str, *, wrong: bool = False) -> Response:
    status, keyless = 403 if wrong else 200, not requires_key(relay)
    return render_page("sign_in.html", status, back=back, wrong=wrong, keyless=keyless, path=request.url.path)


@router.post("/sign-out")
async def sign_out(relay: CurrentRelay, visitor: CurrentVisitor, _form: CheckedForm) -> Response:
    """Sign the visitor out by deleting the sign-in and its cookie."""
    await relay.client.sign_ins.sign_out(visitor.token)
    response = redirect("/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response

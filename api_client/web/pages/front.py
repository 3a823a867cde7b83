"""The first page, the overview, sign-in and sign-out, and the static files of all pages."""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.figures.figures import SPANS
from api_client.overview import overview
from api_client.web.errors import ApiError
from api_client.web.identity.access import needs_key
from api_client.web.identity.origin import require_local
from api_client.web.pages.chart import outcome_columns, rate_columns
from api_client.web.pages.render import ASSETS, VERSION, page, page_router, see_other, visited
from api_client.web.pages.visitor import COOKIE, Form, OverseerOf, VisitorOf, form_of, own_path, set_cookie, sign_in
from api_client.web.relay.relay import Relay, RelayOf

_ROWS = 8
_REFRESH_SECONDS = 5

router = page_router()


@router.get("/")
async def first_page(visitor: VisitorOf) -> Response:
    """Redirect operators to the overview, and other visitors to the list of their turns."""
    return see_other("/turns" if visitor.owner else "/overview")


@router.get("/overview")
async def show_overview(request: Request, relay: RelayOf, visitor: OverseerOf, span: str = "24h") -> Response:
    """Show operators the overview of the installation; redirect other visitors to the list of their turns."""
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    seen = await overview(relay.client, span, rows=_ROWS)
    pieces = seen.figures.pieces
    return visited(
        "overview.html",
        request,
        visitor,
        seen=seen,
        figures=seen.figures,
        total=seen.figures.whole.total,
        spans=SPANS,
        columns=outcome_columns(pieces),
        rules=[(row, rate_columns(pieces, row.name)) for row in seen.figures.rules],
        refresh=_REFRESH_SECONDS,
    )


@router.get("/favicon.ico")
async def icon() -> Response:
    """Redirect browsers that ask for ``/favicon.ico`` to the icon's real address."""
    return see_other(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def asset(version: str, name: str) -> Response:
    """Serve a static file that browsers may cache without limit, because its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})


log = structlog.get_logger(__name__)


@router.get("/sign-in")
async def sign_in_page(request: Request, relay: RelayOf, next: str = "") -> Response:  # noqa: A002 the field's name
    """Show the sign-in form, which asks for an API key or for the operator's token."""
    return _sign_in_form(request, relay, own_path(next))


@router.post("/sign-in")
async def take_key(request: Request, relay: RelayOf) -> Response:
    """Sign a visitor in with an API key by setting a cookie; too many wrong keys raise an error."""
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
    status, keyless = 403 if wrong else 200, not needs_key(relay)
    return page("sign_in.html", status, back=back, wrong=wrong, keyless=keyless, path=request.url.path)


@router.post("/sign-out")
async def sign_out(relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Sign the visitor out by deleting the sign-in and its cookie."""
    await relay.client.sign_ins.forget(visitor.token)
    response = see_other("/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response

"""The first page, the overview of an installation, and the files that all pages load."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api_client.figures.figures import SPANS
from api_client.figures.overview import overview
from api_client.web.errors import ApiError
from api_client.web.pages import chart
from api_client.web.pages.page_route import page_router, see_other, visited
from api_client.web.pages.render import ASSETS, VERSION
from api_client.web.pages.visitor import VisitorOf
from api_client.web.relay import RelayOf

#: Rows of the overview's lists.
_ROWS = 8
_REFRESH_SECONDS = 5

router = page_router()


@router.get("/")
async def first_page(visitor: VisitorOf) -> Response:
    """Operators see the overview, others their turns."""
    return see_other("/turns" if visitor.owner else "/overview")


@router.get("/overview")
async def show_overview(request: Request, relay: RelayOf, visitor: VisitorOf, span: str = "24h") -> Response:
    """An installation at a glance, for operators; everybody else is redirected to their turns."""
    if visitor.owner:
        return see_other("/turns")
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
        columns=chart.outcome_columns(pieces),
        rules=[(row, chart.rate_columns(pieces, row.name)) for row in seen.figures.rules],
        refresh=_REFRESH_SECONDS,
    )


@router.get("/favicon.ico")
async def icon() -> Response:
    """For browsers that ask for it without having read a page."""
    return see_other(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def asset(version: str, name: str) -> Response:
    """A file the pages load. Its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})

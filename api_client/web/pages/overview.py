"""The overview of the installation, and the first page, which leads to it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api_client.figures.figures import SPANS
from api_client.overview import read_overview
from api_client.web.errors import ApiError
from api_client.web.pages.chart import chart_cost, chart_outcomes, chart_rejection_rate
from api_client.web.pages.rendering import page_router, redirect, render_for_visitor
from api_client.web.pages.visitor import CurrentOverseer, CurrentVisitor
from api_client.web.relay.relay import CurrentRelay

_ROWS = 8
_REFRESH_SECONDS = 5

router = page_router()


@router.get("/")
async def open_first_page(visitor: CurrentVisitor) -> Response:
    """Redirect operators to the overview, and other visitors to their list of turns."""
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
        costs=chart_cost(pieces),
        rules=[(row, chart_rejection_rate(pieces, row.name)) for row in seen.figures.rules],
        refresh=_REFRESH_SECONDS,
    )

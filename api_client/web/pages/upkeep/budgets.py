"""The page of budgets: what was spent today, and by whom in the last days."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.api_keys import with_names
from api_client.pauses.pause import clock_time
from api_client.web.pages.page_route import page_router, see_other, visited
from api_client.web.pages.visitor import VisitorOf
from api_client.web.relay import RelayOf

router = page_router()

_WEEK = 7 * 86_400.0
_ROWS = 20


@router.get("/budgets")
async def show_budgets(request: Request, relay: RelayOf, visitor: VisitorOf) -> Response:
    """Today's budgets and the week's spending, for operators; others are led to their turns."""
    if visitor.owner:
        return see_other("/turns")
    now = time.time()
    return visited(
        "budgets.html",
        request,
        visitor,
        budgets=[(each, clock_time(each.resets_at, now)) for each in await relay.client.spending.today()],
        spent=[
            (by, [row for row in (await relay.client.figures.stats(_WEEK, by)).rows if row.turns][:_ROWS])  # type: ignore[union-attr]
            for by in ("model", "key", "owner")
        ],
        named=with_names(relay.settings.keys_path),
        refresh=0,
    )

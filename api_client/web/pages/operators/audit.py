"""The page of the audit log."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.api_keys import make_owner_namer
from api_client.figures.figures import SPANS
from api_client.store.audit import group_lines
from api_client.web.errors import ApiError
from api_client.web.pages.rendering import page_router, render_for_visitor
from api_client.web.pages.visitor import CurrentOverseer
from api_client.web.relay.relay import CurrentRelay

router = page_router()
_GROUPS = 50


@router.get("/audit")
async def show_audit(
    request: Request, relay: CurrentRelay, visitor: CurrentOverseer, span: str = "7d", turn: str = "", page: int = 1
) -> Response:
    """Show the audit log, newest entries first: who ordered which action on which turn, even refused ones."""
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    since = time.time() - SPANS[span][0]
    lines = await relay.client.audit.read_lines(since=since, turn_id=turn.strip())
    groups, start = group_lines(lines[::-1]), _GROUPS * (max(page, 1) - 1)
    return render_for_visitor(
        "audit.html",
        request,
        visitor,
        groups=groups[start : start + _GROUPS],
        page=max(page, 1),
        more=len(groups) > start + _GROUPS,
        named=make_owner_namer(relay.settings.keys_path),
        span=span,
        spans=SPANS,
        turn=turn,
    )

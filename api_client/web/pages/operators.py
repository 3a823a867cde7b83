"""Pages for operators alone: the workers with their buttons, and the audit log."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.actions import order_worker
from api_client.contract.values.worker_order import WorkerOrder
from api_client.figures.figures import SPANS
from api_client.web.errors import ApiError
from api_client.web.identity.access import needs_token
from api_client.web.pages.page_route import page_router, see_other, visited
from api_client.web.pages.visitor import Form, Visitor, VisitorOf
from api_client.web.relay import RelayOf

router = page_router()
_REFRESH_SECONDS = 5
_LINES = 500


@router.get("/workers")
async def show_workers(request: Request, relay: RelayOf, visitor: VisitorOf) -> Response:
    """Every worker process of the last day, what it does, and when it was last heard of."""
    if visitor.owner:
        return see_other("/turns")
    return visited("workers.html", request, visitor, seen=await relay.client.standing(), refresh=_REFRESH_SECONDS)


@router.post("/workers/{name}/{order}")
async def order(name: str, order: WorkerOrder, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Order a worker to take nothing new, to end, or to go on."""
    _require_operator(visitor)
    await order_worker(relay.client, name, order, by=visitor.name, detail="page")
    return see_other("/workers")


@router.get("/audit")
async def show_audit(
    request: Request, relay: RelayOf, visitor: VisitorOf, span: str = "7d", turn: str = ""
) -> Response:
    """Who did what to which turn and when, newest first; what was refused is said to be so."""
    if visitor.owner:
        return see_other("/turns")
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    since = time.time() - SPANS[span][0]
    lines = await relay.client.audit.read(since=since, turn_id=turn.strip(), limit=_LINES)
    return visited("audit.html", request, visitor, lines=lines[::-1], span=span, spans=SPANS, turn=turn, refresh=0)


def _require_operator(visitor: Visitor) -> None:
    if visitor.keyless:
        raise needs_token()
    if not visitor.operator:
        raise ApiError(403, "only an operator orders workers", code="operators_only")

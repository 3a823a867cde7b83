"""The page of pauses: what is paused and why, and a form to pause and resume."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.api_keys import with_names
from api_client.contract.errors import BadRequest
from api_client.contract.values.owners import owner_named
from api_client.figures.spans import seconds_of
from api_client.pauses.pause import BREAKER, WHATS, Pause, clock_time
from api_client.web.identity.access import require_operator
from api_client.web.pages.page_route import page_router, see_other, visited
from api_client.web.pages.visitor import Form, VisitorOf
from api_client.web.relay import RelayOf

router = page_router()


@router.get("/paused")
async def show_pauses(request: Request, relay: RelayOf, visitor: VisitorOf) -> Response:
    """What is paused, for operators; others are led to their turns."""
    if visitor.owner:
        return see_other("/turns")
    now = time.time()
    found = await relay.client.pauses.in_force()
    return visited(
        "paused.html",
        request,
        visitor,
        pauses=[(each, clock_time(each.until, now) if each.until else "") for each in found],
        breaker=BREAKER,
        named=with_names(relay.settings.keys_path),
        held=await relay.client.pauses.held(),
        whats=WHATS,
        models=relay.settings.models,
        refresh=0,
    )


@router.post("/paused")
async def pause(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
    """Pause something, and show it."""
    require_operator(visitor, "pauses and resumes")
    try:
        seconds = seconds_of(form["for"].strip()) if form.get("for", "").strip() else 0.0
    except ValueError as error:
        raise BadRequest(str(error), param="for") from None
    what, name = form.get("what", ""), form.get("name", "").strip()
    name = "" if what == "intake" else owner_named(name) if what == "owner" else name
    begun = Pause(what=what, name=name, reason=form.get("reason", "").strip(), by=visitor.name)
    await relay.client.pauses.pause(begun, seconds=seconds)
    return see_other("/paused")


@router.post("/paused/resume")
async def resume(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
    """End a pause, and show what is left."""
    require_operator(visitor, "pauses and resumes")
    what = "model" if form.get("what") == BREAKER else form.get("what", "")
    await relay.client.pauses.resume(what, form.get("name", ""), by=visitor.name)
    return see_other("/paused")

"""The form that starts a pause."""

from __future__ import annotations

from starlette.responses import Response

from api_client.contract.errors import BadRequest
from api_client.figures.time_spans import parse_time_span
from api_client.pauses.pause import Pause
from api_client.resources.pauses import PAUSES
from api_client.web.identity.access import require_operator
from api_client.web.pages.rendering import page_router, redirect
from api_client.web.pages.visitor import CheckedForm, CurrentVisitor
from api_client.web.relay.relay import CurrentRelay

router = page_router()


@router.post("/paused")
async def start_pause(relay: CurrentRelay, visitor: CurrentVisitor, form: CheckedForm) -> Response:
    """Start the pause that an operator entered in the form, and redirect to the list of pauses."""
    require_operator(visitor.caller, PAUSES.doing)
    try:
        seconds = parse_time_span(form["for"].strip()) if form.get("for", "").strip() else 0.0
    except ValueError as error:
        raise BadRequest(str(error), param="for") from None
    what, name = form.get("what", ""), form.get("name", "").strip()
    name = "" if what == "intake" else name
    begun = Pause(what=what, name=name, reason=form.get("reason", "").strip(), by=visitor.actor_name)
    await relay.client.pauses.set_pause(begun, seconds=seconds)
    return redirect("/paused")

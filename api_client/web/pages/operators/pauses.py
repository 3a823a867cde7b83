"""The form that starts a pause."""

from __future__ import annotations

from starlette.responses import Response

from api_client.contract.errors import BadRequest
from api_client.contract.owners import owner_named
from api_client.figures.spans import seconds_of
from api_client.pauses.pause import Pause
from api_client.resources.pauses import PAUSES
from api_client.web.identity.access import require_operator
from api_client.web.pages.render import page_router, see_other
from api_client.web.pages.visitor import Form, VisitorOf
from api_client.web.relay.relay import RelayOf

router = page_router()


@router.post("/paused")
async def pause(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
    """Start the pause that an operator entered in the form, and show the list of pauses."""
    require_operator(visitor.caller, PAUSES.doing)
    try:
        seconds = seconds_of(form["for"].strip()) if form.get("for", "").strip() else 0.0
    except ValueError as error:
        raise BadRequest(str(error), param="for") from None
    what, name = form.get("what", ""), form.get("name", "").strip()
    name = "" if what == "intake" else owner_named(name) if what == "owner" else name
    begun = Pause(what=what, name=name, reason=form.get("reason", "").strip(), by=visitor.name)
    await relay.client.pauses.pause(begun, seconds=seconds)
    return see_other("/paused")

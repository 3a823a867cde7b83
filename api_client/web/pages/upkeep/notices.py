"""The page of calls for help: what is to be sent, what was given up, and forms to send that again or to drop it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api_client.web.identity.access import require_operator
from api_client.web.pages.page_route import page_router, see_other, visited
from api_client.web.pages.visitor import Form, VisitorOf
from api_client.web.relay import RelayOf

router = page_router()

#: Rows of each table.
_ROWS = 100


@router.get("/notices")
async def show_notices(request: Request, relay: RelayOf, visitor: VisitorOf) -> Response:
    """What is to be sent and what was given up, for operators; others are led to their turns."""
    if visitor.owner:
        return see_other("/turns")
    notices = relay.client.notices
    return visited(
        "notices.html",
        request,
        visitor,
        counts=await notices.counts(),
        waiting=await notices.waiting(_ROWS),
        given_up=await notices.given_up(_ROWS),
        sent=await notices.are_sent(),
        refresh=0,
    )


@router.post("/notices/resend")
async def resend(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
    """Send a notice that was given up again, or all, and show what is left."""
    require_operator(visitor, "sends notices again or drops them")
    await relay.client.notices.send_again(_named(form), by=visitor.name)
    return see_other("/notices")


@router.post("/notices/drop")
async def drop(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
    """Take a notice off the list of those that were given up, or all, and show what is left."""
    require_operator(visitor, "sends notices again or drops them")
    await relay.client.notices.drop(_named(form), by=visitor.name)
    return see_other("/notices")


def _named(form: dict[str, str]) -> tuple[str, ...]:
    """The notice a form is about; none: it is about all."""
    notice = form.get("notice", "")
    return (notice,) if notice else ()

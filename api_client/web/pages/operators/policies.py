"""The page of flow versions and policies."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api_client.web.pages.page_part import read_parts
from api_client.web.pages.rendering import page_router, render_for_visitor
from api_client.web.pages.visitor import CurrentOverseer
from api_client.web.relay.relay import CurrentRelay

router = page_router()
_DAY_SECONDS = 86_400.0


@router.get("/policies")
async def show_policies(request: Request, relay: CurrentRelay, visitor: CurrentOverseer) -> Response:
    """Show the flow versions with their statistics, and the policies in use."""
    client = relay.client
    active, gone = await client.flows.read_active(), await client.flows.read_rolled_back()
    rows = {row.name: row for row in (await client.figures.read_stats(_DAY_SECONDS, "flow")).rows}
    total = sum(active.values())
    versions = [
        {"name": name, "share": active.get(name, 0) / total, "row": rows.get(name), "gone": gone.get(name)}
        for name in relay.settings.flow_version
    ]
    parts = await read_parts("policies.html", relay, visitor)
    return render_for_visitor("policies.html", request, visitor, versions=versions, **parts)

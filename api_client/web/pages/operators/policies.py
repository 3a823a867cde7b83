"""The page of flow versions and policy replays."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api_client.web.pages.render import page_router, visited
from api_client.web.pages.visitor import OverseerOf
from api_client.web.relay.relay import RelayOf

router = page_router()
_DAY_SECONDS = 86_400.0


@router.get("/policies")
async def show_policies(request: Request, relay: RelayOf, visitor: OverseerOf) -> Response:
    """Show the flow versions with their statistics, and the replays of policies on recorded answers."""
    client = relay.client
    active, gone = await client.flows.active(), await client.flows.rolled_back()
    rows = {row.name: row for row in (await client.figures.stats(_DAY_SECONDS, "flow")).rows}
    total = sum(active.values())
    versions = [
        {"name": name, "share": active.get(name, 0) / total, "row": rows.get(name), "gone": gone.get(name)}
        for name in relay.settings.flow_version
    ]
    replays = await client.policy_replays.all()
    return visited("policies.html", request, visitor, versions=versions, replays=replays)

"""``/v1/budgets``: what was spent today of each budget. Who may read figures sees all, others what is about them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api_client.contract.counters import label
from api_client.web.identity.access import Asker
from api_client.web.relay import RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/budgets")


@router.get("", response_model=None)
async def list_budgets(relay: RelayOf, caller: Asker) -> Response:
    """The budgets, the most used first."""
    found = await relay.client.spending.today()
    if not caller.metrics:
        own = {f"owner:{caller.owner}", f"key:{label(caller.holder)}"}
        found = [each for each in found if each.scope in own]
    return JSON({"object": "list", "data": [each.to_dict() for each in found]})

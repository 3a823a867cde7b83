"""The tool calls of a turn, on the turn's page."""

from __future__ import annotations

from typing import Any

from api_client.contract.turn import Turn
from api_client.tools.gateway_calls import GatewayCalls
from api_client.web.pages.page_part import PagePart
from api_client.web.pages.visitor import Visitor
from api_client.web.relay.relay import Relay


async def _read_calls(relay: Relay, _visitor: Visitor, turn: Turn | None) -> dict[str, Any]:
    return {"tool_calls": await GatewayCalls(relay.client.store).read_calls(turn.turn_id) if turn else []}


PART = PagePart(page="turn.html", templates={"cards": "turn_tool_calls.html"}, read=_read_calls)

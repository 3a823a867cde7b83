"""Lets the turns that wait for a sign-in to an MCP server continue once their owner has signed in."""

from __future__ import annotations

from contextlib import suppress

from api_client.client import TurnsClient
from api_client.contract.decision import DecisionKind
from api_client.contract.errors import BadRequest, TurnNotFound, TurnNotSuspended
from api_client.contract.tool_sign_in import TOOL_SIGN_IN
from api_client.contract.turn import Turn
from api_client.interruptions.tool_sign_in_question import BEGIN_PAGE


async def approve_sign_ins(
    client: TurnsClient, server: str, owner: str, *, turn_id: str, suspended_ms: int, by: str
) -> Turn | None:
    """Let a turn continue, and all others of its owner that wait for a sign-in to the same server.

    ``suspended_ms`` identifies the turn's question. Return the turn, or None if its question is not open any more.
    """
    turn: Turn | None = None
    with suppress(TurnNotSuspended):
        turn = await _approve_turn(client, turn_id, owner, suspended_ms / 1000, by)
    for other in await client.inbox.list_suspended(owner=owner):
        asked = other.interruption
        if asked and asked.kind == TOOL_SIGN_IN and asked.asked.get("server") == server:
            with suppress(TurnNotFound, TurnNotSuspended, BadRequest):
                await _approve_turn(client, other.turn_id, owner, other.suspended_at, by)
    return turn


async def _approve_turn(client: TurnsClient, turn_id: str, owner: str, suspended_at: float, by: str) -> Turn:
    yes = DecisionKind.APPROVE.value
    return await client.inbox.decide_turn(
        turn_id, yes, by=by, owner=owner, suspended_at=suspended_at, how="sign-in", page=BEGIN_PAGE
    )

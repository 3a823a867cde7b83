"""List suspended turns and decide on them; owners see their own turns, operators all turns."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.orders import name_caller
from api_client.turns.proposal import proposal
from api_client.web.bodies.body import read_object
from api_client.web.bodies.models import DecisionBody, operation, read
from api_client.web.identity.access import Asker, Named, Reach, needs_token
from api_client.web.relay.relay import RelayOf
from api_client.web.wire import JSON, turn_object

router = APIRouter()


@router.get("/v1/inbox", response_model=None)
async def list_inbox(relay: RelayOf, owner: Reach) -> Response:
    """List the turns that await a decision, longest waiting first."""
    turns = await relay.client.inbox.suspended(owner=owner)
    return JSON({"object": "list", "data": [turn_object(turn) for turn in turns]})


@router.get("/v1/inbox/{turn_id}", response_model=None)
async def show_inbox(turn_id: Named, relay: RelayOf, owner: Reach) -> Response:
    """Return a suspended turn with the answer that an approval would accept and the problems of the answer."""
    turn = await relay.client.reader.get(turn_id, owner=owner)
    attempts = await relay.client.reader.attempts(turn_id, owner=owner)
    return JSON({**turn_object(turn), **proposal(turn, attempts)})


@router.post("/v1/inbox/{turn_id}/decision", response_model=None, openapi_extra=operation(DecisionBody))
async def decide(turn_id: Named, request: Request, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Decide on a suspended turn.

    Repeating a decision with its ``decision_id`` changes nothing; a different later decision gets 409.
    """
    if caller.keyless and not caller.operator:
        raise needs_token()
    body = read(DecisionBody, await read_object(request, relay.settings.max_body_bytes))
    turn = await relay.client.inbox.decide(
        turn_id,
        body.decision or "",
        by=name_caller(caller.owner),
        name=body.name or body.by or "",
        note=body.note or "",
        text=body.text or "",
        owner=owner,
        decision_id=body.decision_id or "",
        suspended_at=body.suspended_at or 0.0,
    )
    return JSON(turn_object(turn))

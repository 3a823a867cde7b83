"""List suspended turns and decide on them; owners see their own turns, operators all turns."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.decision import DecisionKind
from api_client.contract.order_log import name_caller
from api_client.turns.proposal import build_proposal
from api_client.web.bodies.body import read_object
from api_client.web.bodies.body_model import Body
from api_client.web.bodies.models import openapi_operation, read_model_body
from api_client.web.identity.access import CurrentCaller, NamedTurnId, VisibleOwner, token_required_error
from api_client.web.relay.relay import CurrentRelay
from api_client.web.wire import JSONResponse, turn_object

router = APIRouter()


class DecisionBody(Body):
    """The body of a person's decision about a suspended turn."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["decision"]})

    decision: Annotated[str | None, WithJsonSchema({"enum": list(DecisionKind)})] = None
    note: str | None = None
    text: str | None = None
    decision_id: str | None = None
    suspended_at: float | None = None
    name: str | None = Field(None, alias="for")


@router.get("/v1/inbox", response_model=None)
async def list_inbox(relay: CurrentRelay, owner: VisibleOwner) -> Response:
    """List the turns that wait for a decision, longest waiting first."""
    turns = await relay.client.inbox.list_suspended(owner=owner)
    return JSONResponse({"object": "list", "data": [turn_object(turn) for turn in turns]})


@router.get("/v1/inbox/{turn_id}", response_model=None)
async def show_inbox_turn(turn_id: NamedTurnId, relay: CurrentRelay, owner: VisibleOwner) -> Response:
    """Return a suspended turn, with the answer that a person can approve and the problems of this answer."""
    turn = await relay.client.reader.read_turn(turn_id, owner=owner)
    attempts = await relay.client.reader.read_attempts(turn_id, owner=owner)
    return JSONResponse({**turn_object(turn), **build_proposal(turn, attempts)})


@router.post("/v1/inbox/{turn_id}/decision", response_model=None, openapi_extra=openapi_operation(DecisionBody))
async def decide_turn(
    turn_id: NamedTurnId, request: Request, relay: CurrentRelay, owner: VisibleOwner, caller: CurrentCaller
) -> Response:
    """Record a person's decision about a suspended turn.

    Repeating a decision with its ``decision_id`` changes nothing; a different later decision gets 409.
    """
    if caller.keyless and not caller.is_operator:
        raise token_required_error()
    body = read_model_body(DecisionBody, await read_object(request, relay.settings.max_body_bytes))
    turn = await relay.client.inbox.decide_turn(
        turn_id,
        body.decision or "",
        by=name_caller(caller.owner),
        name=body.name or "",
        note=body.note or "",
        text=body.text or "",
        owner=owner,
        decision_id=body.decision_id or "",
        suspended_at=body.suspended_at or 0.0,
    )
    return JSONResponse(turn_object(turn))

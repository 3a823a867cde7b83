"""``/v1/inbox``: parked turns, and deciding on them. An owner sees and decides on its own turns, an operator on all."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client import actions
from api_client.audit import by_key
from api_client.contract.escalation import DecisionKind
from api_client.contract.turn import Turn
from api_client.turns.proposal import proposal
from api_client.web.bodies.body import read_object
from api_client.web.errors import bad_request, shown
from api_client.web.identity.access import Asker, Reach, require_operator
from api_client.web.relay import RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/inbox")

#: ``by`` is the first version's word for ``for``: the name of who decides, as the caller says it.
_FIELDS = ("decision", "note", "text", "decision_id", "for", "by")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["decision"],
                    "properties": {
                        "decision": {"enum": list(DecisionKind)},
                        **{name: {"type": "string"} for name in _FIELDS[1:]},
                    },
                }
            }
        },
    }
}


@router.get("", response_model=None)
async def list_inbox(relay: RelayOf, owner: Reach) -> Response:
    """The turns that wait for a decision, longest waiting first."""
    turns = await relay.client.inbox(owner=owner)
    return JSON({"object": "list", "data": [_shown(turn) for turn in turns]})


@router.get("/{turn_id}", response_model=None)
async def show_inbox(turn_id: str, relay: RelayOf, owner: Reach) -> Response:
    """One turn with what a person needs to decide: the result an approval accepts, and what was found in it."""
    turn = await relay.client.get(turn_id, owner=owner)
    attempts = await relay.client.attempts(turn_id, owner=owner)
    return JSON({**_shown(turn), **proposal(turn, attempts)})


@router.post("/{turn_id}/decision", response_model=None, openapi_extra=_BODY)
async def decide(turn_id: str, request: Request, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Decide. Repeating a decision with its ``decision_id`` changes nothing; another one later is refused with 409."""
    require_operator(caller)
    body = await read_object(request, relay.settings.max_body_bytes)
    given = {name: _text(body, name) for name in _FIELDS}
    if unknown := sorted(set(body) - set(_FIELDS)):
        raise bad_request(f"{shown(unknown[0])}: no such field; known: {', '.join(_FIELDS)}", param=unknown[0][:80])
    turn = await actions.decide(
        relay.client,
        turn_id,
        given["decision"],
        by=by_key(caller.owner),
        name=given["for"] or given["by"],
        note=given["note"],
        text=given["text"],
        owner=owner,
        decision_id=given["decision_id"],
    )
    return JSON(_shown(turn))


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise bad_request(f"{name}: must be a text, not {shown(value)}", param=name, code="invalid_type")
    return value


def _shown(turn: Turn) -> dict[str, Any]:
    return {"object": "turn", **turn.to_dict()}

"""The replay of a turn on the turn's page: buttons, and links between both turns."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from api_client.contract.errors import TurnNotFinished
from api_client.contract.turn import Turn
from api_client.policies.turn_replays import REPLAY_OF, derive_replay_id
from api_client.turn_actions.replay import ReplayAction
from api_client.web.errors import ApiError
from api_client.web.intake.caller_actions import act_for_caller
from api_client.web.pages.page_part import PagePart
from api_client.web.pages.rendering import page_router, redirect
from api_client.web.pages.visitor import CheckedForm, CheckedLongForm, CurrentVisitor, Visitor, explain_missing_token
from api_client.web.relay.relay import CurrentRelay, Relay

router = page_router()


async def _read_replays(relay: Relay, visitor: Visitor, turn: Turn | None) -> dict[str, Any]:
    again = derive_replay_id(turn.turn_id) if turn and turn.outcome else ""
    return {
        "replay": again if again and await relay.client.lists.read_turns([again]) else "",
        "replay_of": turn.labels.get(REPLAY_OF, "") if turn else "",
        "models": tuple(visitor.caller.visible_settings(relay.settings).models),
    }


_TEMPLATES = {place: f"turn_replay_{place}.html" for place in ("buttons", "facts", "cards")}
PART = PagePart(page="turn.html", templates=_TEMPLATES, read=_read_replays)


@router.post("/turns/{turn_id}/replay")
async def replay_turn(turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor, _form: CheckedForm) -> Response:
    """Submit a turn again and redirect to the new turn. A repeated request creates no second turn."""
    return await _replay_and_redirect(relay, visitor, turn_id, ReplayAction())


@router.post("/turns/{turn_id}/replay-changed")
async def replay_changed_turn(
    turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor, form: CheckedLongForm
) -> Response:
    """Submit a turn again with another model or message, and redirect to the new turn.

    Repeating the same request creates no second turn.
    """
    message = form.get("message", "").replace("\r\n", "\n")
    if not message.strip():
        raise ApiError(400, "the message is empty", param="message", code="invalid_value")
    return await _replay_and_redirect(
        relay, visitor, turn_id, ReplayAction(model=form.get("model", ""), prompt=message)
    )


async def _replay_and_redirect(relay: Relay, visitor: Visitor, turn_id: str, action: ReplayAction) -> Response:
    try:
        with explain_missing_token(visitor):
            done = await act_for_caller(
                relay,
                action,
                turn_id,
                caller=visitor.caller,
                turn_owner=visitor.changeable_owner,
                by=visitor.actor_name,
                detail="page",
            )
    except TurnNotFinished:
        raise ApiError(409, "this turn has not finished yet: cancel it first", code="turn_not_finished") from None
    return redirect(f"/turns/{done.new_turn_id}")

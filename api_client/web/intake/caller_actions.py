"""Carry out actions on turns for HTTP callers, whose limits apply."""

from __future__ import annotations

from dataclasses import replace

from api_client.operator_actions import ActionResult, TurnAction, carry_out_action
from api_client.web.bodies.models import require_model
from api_client.web.errors import bad_request
from api_client.web.identity.access import Caller
from api_client.web.intake.turn_submission import require_room
from api_client.web.relay.relay import Relay


async def act_for_caller(
    relay: Relay,
    action: TurnAction,
    turn_id: str,
    *,
    caller: Caller,
    turn_owner: str | None,
    by: str,
    bulk: str = "",
    detail: str = "",
) -> ActionResult:
    """Carry out an action on a turn for an HTTP caller, and return the result. The caller's limits apply.

    Args:
        turn_owner: only turns of this owner may be acted on; None for turns of all owners.
        by, bulk, detail: who acts, the id of a bulk action, and remarks, as in ``carry_out_action``.

    Raises:
        ApiError: 404 ``model_not_found``, 400 if the message is too long, 429 as ``require_room``.
        HelixError: the errors of ``carry_out_action``.
    """
    if action.submits:
        turn = await relay.client.reader.read_turn(turn_id, owner=turn_owner)
        action = action.drop_unchanged(turn)
        new = action.new_turn(turn)
        require_model(new.model, caller.visible_settings(relay.settings))
        longest = relay.settings.max_message_chars
        if len(new.message) > longest:
            raise bad_request(f"message: must have {longest} characters at most", param="message")
        owner = replace(caller, owner=turn.request.owner)
        await require_room(relay, owner, relay.settings.locale, [new.turn_id], size=len(new.message.encode()))
    return await carry_out_action(relay.client, action, turn_id, by=by, owner=turn_owner, bulk=bulk, detail=detail)

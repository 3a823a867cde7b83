"""Replays a turn for an HTTP caller, within the caller's limits and models."""

from __future__ import annotations

from dataclasses import replace

from api_client.actions import ActionResult, ReplayChange, carry_out_action
from api_client.policies.turn_replays import derive_replay_id
from api_client.web.bodies.models import require_model
from api_client.web.errors import bad_request
from api_client.web.identity.access import Caller
from api_client.web.intake import require_room
from api_client.web.relay.relay import Relay


async def replay_for_caller(
    relay: Relay,
    turn_id: str,
    change: ReplayChange,
    *,
    caller: Caller,
    reach: str | None,
    by: str,
    bulk: str = "",
    detail: str = "",
) -> ActionResult:
    """Submit a finished turn again, within the caller's limits and models, and return the result.

    ``reach`` is the owner whose turns may be replayed, None for all owners. Raises ``ApiError``: 404
    ``model_not_found``, 400 if the message is too long, 429 as ``require_room``; and the errors of
    ``carry_out_action``.
    """
    turn = await relay.client.reader.read_turn(turn_id, owner=reach)
    require_model(change.model or turn.request.model, caller.visible_settings(relay.settings))
    same_text = change.prompt == turn.request.prompt.replace("\r\n", "\n")
    change = ReplayChange(
        model="" if change.model == turn.request.model else change.model, prompt="" if same_text else change.prompt
    )
    longest = relay.settings.max_message_chars
    if len(change.prompt) > longest:
        raise bad_request(f"message: must have {longest} characters at most", param="message")
    new_id = derive_replay_id(turn_id, change.model, change.prompt)
    owner = replace(caller, owner=turn.request.owner)
    await require_room(relay, owner, relay.settings.locale, [new_id], size=len(change.prompt.encode()))
    return await carry_out_action(
        relay.client, "replay", turn_id, by=by, owner=reach, bulk=bulk, detail=detail, change=change
    )

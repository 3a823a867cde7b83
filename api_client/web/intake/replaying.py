"""Replay a turn for an HTTP caller, within the caller's limits and models."""

from __future__ import annotations

from dataclasses import replace

from api_client.actions import Change, Done, act
from api_client.policies.turn_replays import replay_id
from api_client.web.bodies.models import known_model
from api_client.web.errors import bad_request
from api_client.web.identity.access import Caller
from api_client.web.intake import require_room
from api_client.web.relay.relay import Relay


async def replay(
    relay: Relay,
    turn_id: str,
    change: Change,
    *,
    caller: Caller,
    reach: str | None,
    by: str,
    bulk: str = "",
    detail: str = "",
) -> Done:
    """Submit a finished turn again, within the caller's limits and models, and return the result.

    The limits and models of ``caller`` apply; ``reach`` is the owner whose turns may be replayed, None: all owners.
    Raises ``ApiError``: 404 ``model_not_found``, 400 if the message is too long, 429 as ``require_room``; and the
    errors of ``act``.
    """
    turn = await relay.client.reader.get(turn_id, owner=reach)
    known_model(change.model or turn.request.model, caller.settings(relay.settings))
    same_text = change.prompt == turn.request.prompt.replace("\r\n", "\n")
    change = Change(
        model="" if change.model == turn.request.model else change.model, prompt="" if same_text else change.prompt
    )
    longest = relay.settings.max_message_chars
    if len(change.prompt) > longest:
        raise bad_request(f"message: must have {longest} characters at most", param="message")
    new_id = replay_id(turn_id, change.model, change.prompt)
    owner = replace(caller, owner=turn.request.owner)
    await require_room(relay, owner, relay.settings.locale, [new_id], size=len(change.prompt.encode()))
    return await act(relay.client, "replay", turn_id, by=by, owner=reach, bulk=bulk, detail=detail, change=change)

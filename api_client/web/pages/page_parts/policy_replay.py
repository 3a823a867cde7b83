"""Pages of policy replays, which say what a policy would have decided about recorded answers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.errors import TurnNotFound
from api_client.contract.turn import Turn
from api_client.policies.policy_replays import PolicyReplays
from api_client.web.errors import ApiError
from api_client.web.pages.page_part import PagePart
from api_client.web.pages.rendering import page_router, render_for_visitor
from api_client.web.pages.visitor import CurrentOverseer, Visitor
from api_client.web.relay.relay import CurrentRelay, Relay

router = page_router()


async def _list_replays(relay: Relay, _visitor: Visitor, _turn: Turn | None) -> dict[str, Any]:
    return {"replays": await PolicyReplays(relay.client.store).list_replays()}


PART = PagePart(page="policies.html", templates={"cards": "policy_replays.html"}, read=_list_replays)


@router.get("/policies/{replay_id}")
async def show_policy_replay(
    request: Request, replay_id: str, relay: CurrentRelay, visitor: CurrentOverseer
) -> Response:
    """Show a policy replay, with the recorded answers on which the policy would decide differently."""
    replay = await PolicyReplays(relay.client.store).find_replay(replay_id)
    if replay is None:
        raise ApiError(404, "no such comparison is kept; see /policies", code="not_found")
    changes = replay.found["changes"]
    texts = [await _read_answer(relay, change["turn_id"], change["attempt"]) for change in changes]
    rules = sorted({*replay.found["by_rule"], *replay.found["in_shadow"]})
    more = replay.found["rejected_now"] + replay.found["accepted_now"] - len(changes)
    return render_for_visitor(
        "policy_replay.html",
        request,
        visitor,
        replay=replay,
        rules=rules,
        texts=list(zip(changes, texts, strict=True)),
        more=more,
    )


async def _read_answer(relay: CurrentRelay, turn_id: str, number: int) -> str | None:
    try:
        attempts = await relay.client.reader.read_attempts(turn_id)
    except TurnNotFound:
        return None
    return next((each.answer or each.text for each in attempts if each.number == number), None)

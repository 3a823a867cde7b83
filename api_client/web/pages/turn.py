"""The page of one turn, and the actions of its buttons."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.actions import Change, act
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import NotFinished
from api_client.contract.settings.trace_settings import TRACE_ID
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.history import deaths, export
from api_client.index.finding import find_turn, neighbours
from api_client.interruptions.registry import question_of, recap_of
from api_client.policies.turn_replays import replay_id
from api_client.tracing import trace_id
from api_client.turns.proposal import proposal
from api_client.web.errors import ApiError, shown_text
from api_client.web.identity.access import require_operator
from api_client.web.intake.replaying import replay
from api_client.web.pages.comparison import DiffLine, compare
from api_client.web.pages.events import summary
from api_client.web.pages.render import page_router, see_other, visited
from api_client.web.pages.visitor import Form, LongForm, Visitor, VisitorOf, others_need_token
from api_client.web.pages.waterfall import KINDS, Scale, waterfall
from api_client.web.relay.file_links import list_readable_files
from api_client.web.relay.relay import Relay, RelayOf
from api_client.workers.reports import read_exits

_REFRESH_SECONDS = 2

router = page_router()


@router.get("/turns/{turn_id}")
async def show_turn(request: Request, turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """Show the page of a turn, with its history, attempts, events and result."""
    client = relay.client
    if (whole := await find_turn(client.lists, turn_id, owner=visitor.owner)) != turn_id:
        return see_other(f"/turns/{whole}")
    turn = await client.reader.get(turn_id, owner=visitor.owner)
    attempts = await client.reader.attempts(turn_id, owner=visitor.owner)
    outline = await client.reader.outline(turn_id)
    rows = waterfall(outline.events, turn.finished_at or time.time())
    waits = turn.interruption if turn.state is TurnState.SUSPENDED else None
    again = replay_id(turn.turn_id)
    return visited(
        "turn.html",
        request,
        visitor,
        turn=turn,
        wait=(await client.workers.waits([turn])).get(turn_id),
        attempts=attempts,
        changes=await asyncio.to_thread(_changes, turn, attempts),
        rows=rows,
        scale=Scale(max([0.05, *(bar.end for row in rows for bar in row.bars)])),
        bar_kinds=KINDS,
        events=[(event, summary(event)) for event in outline.events],
        pieces=outline.pieces,
        began=outline.events[0].at if outline.events else turn.created_at,
        replay=again if turn.outcome and await relay.client.lists.read([again]) else "",
        neighbours=await neighbours(client.lists, turn),
        deaths=deaths(outline.events, await read_exits(client.store)) if turn.strikes else [],
        droppable=visitor.operator and turn.outcome is Outcome.DEAD and await client.lists.is_dead_letter(turn_id),
        now=time.time(),
        bundles=visitor.operator and relay.pack is not None,
        files=await list_readable_files(relay, turn_id, visitor.owner) if turn.outcome else [],
        trace=relay.settings.trace_page.replace(TRACE_ID, f"{trace_id(turn):032x}") if turn.outcome else "",
        models=tuple(visitor.caller.settings(relay.settings).models),
        decision={"id": secrets.token_hex(8), **proposal(turn, attempts)} if waits else None,
        question=question_of(waits) if waits else None,
        recap=recap_of(turn, "en"),
        # A refresh would delete what a person is typing into the form of a suspended turn.
        refresh=0 if turn.outcome or waits else _REFRESH_SECONDS,
    )


@router.get("/turns/{turn_id}/export")
async def export_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """Send a turn's record, attempts and events as a JSON file for download."""
    body = json.dumps(await export(relay.client, turn_id, owner=visitor.owner), indent=1)
    name = {"content-disposition": f'attachment; filename="{shown_text(turn_id)}.json"'}
    return Response(body, media_type="application/json", headers=name)


@router.get("/turns/{turn_id}/bundle")
async def bundle_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """Send operators a turn's bug report as a ZIP file for download, without prompts."""
    require_operator(visitor.caller, "downloads a bundle: it shows settings")
    if relay.pack is None:
        raise ApiError(404, "this relay makes no bundles: use `turns bundle`", code="not_found")
    body = await asyncio.to_thread(relay.pack, await export(relay.client, turn_id))
    name = {"content-disposition": f'attachment; filename="turns-{shown_text(turn_id)}.zip"'}
    return Response(body, media_type="application/zip", headers=name)


def _changes(turn: Turn, attempts: list[AttemptRecord]) -> dict[int, list[DiffLine] | None]:
    """Compare each attempt's answer with the one before; key 0 holds the changes made by the final repair."""
    found = {
        after.number: compare(before.answer or before.text, after.answer or after.text)
        for before, after in itertools.pairwise(attempts)
    }
    for attempt in attempts:
        if attempt.mended:
            found[0] = compare(attempt.answer or attempt.text, attempt.mended)
    return found


@router.post("/turns/{turn_id}/cancel")
async def cancel_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Cancel a turn and redirect to its page."""
    with others_need_token(visitor):
        await act(relay.client, "cancel", turn_id, by=visitor.name, owner=visitor.changes, detail="page")
    return see_other(f"/turns/{turn_id}")


@router.post("/turns/{turn_id}/replay")
async def replay_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Submit a turn again and redirect to the new turn; a repeated request creates no second turn."""
    return await _replayed(relay, visitor, turn_id, Change())


@router.post("/turns/{turn_id}/replay-changed")
async def replay_changed_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, form: LongForm) -> Response:
    """Submit a turn again with another model or message, and redirect to the new turn.

    Repeating the same request creates no second turn.
    """
    message = form.get("message", "").replace("\r\n", "\n")
    if not message.strip():
        raise ApiError(400, "the message is empty", param="message", code="invalid_value")
    return await _replayed(relay, visitor, turn_id, Change(model=form.get("model", ""), prompt=message))


async def _replayed(relay: Relay, visitor: Visitor, turn_id: str, change: Change) -> Response:
    try:
        with others_need_token(visitor):
            done = await replay(
                relay, turn_id, change, caller=visitor.caller, reach=visitor.changes, by=visitor.name, detail="page"
            )
    except NotFinished:
        raise ApiError(409, "this turn has not finished yet: cancel it first", code="turn_not_finished") from None
    return see_other(f"/turns/{done.new_turn_id}")


@router.post("/turns/{turn_id}/drop")
async def drop_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Remove a turn from the list of dead letters for an operator, and redirect to the overview."""
    require_operator(visitor.caller, "drops dead letters")
    try:
        await act(relay.client, "drop", turn_id, by=visitor.name, detail="page")
    except NotFinished:
        raise ApiError(409, "this turn is not a dead letter", code="turn_not_finished") from None
    return see_other("/overview")

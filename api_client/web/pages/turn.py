"""The page of one turn, and the actions of its buttons."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import TurnNotFinished
from api_client.contract.settings.trace_settings import TRACE_ID
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.contract.turn_labels import LABELS
from api_client.index.turn_lookup import find_neighbours, find_turn
from api_client.interruptions.registry import show_question, summarise_turn_questions
from api_client.operator_actions import carry_out_action
from api_client.tracing.trace_spans import find_trace_id
from api_client.turn_actions.cancel import ACTION as CANCEL
from api_client.turn_actions.drop import ACTION as DROP
from api_client.turn_export import export_turn, find_deaths
from api_client.turns.proposal import build_proposal
from api_client.web.errors import ApiError, printable_text
from api_client.web.identity.access import require_operator
from api_client.web.pages.event_summary import summarize_event
from api_client.web.pages.page_part import read_parts
from api_client.web.pages.rendering import page_router, redirect, render_for_visitor
from api_client.web.pages.text_comparison import DiffLine, compare_texts
from api_client.web.pages.visitor import CheckedForm, CurrentVisitor, explain_missing_token
from api_client.web.pages.waterfall import KINDS, TimeScale, build_waterfall
from api_client.web.relay.file_links import list_readable_files
from api_client.web.relay.relay import CurrentRelay
from api_client.workers.reports import read_exits

_REFRESH_SECONDS = 2

router = page_router()


@router.get("/turns/{turn_id}")
async def show_turn(request: Request, turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor) -> Response:
    """Show the page of a turn, with its history, attempts, events and result."""
    client = relay.client
    if (whole := await find_turn(client.lists, turn_id, owner=visitor.owner)) != turn_id:
        return redirect(f"/turns/{whole}")
    turn = await client.reader.read_turn(turn_id, owner=visitor.owner)
    attempts = await client.reader.read_attempts(turn_id, owner=visitor.owner)
    outline = await client.reader.read_outline(turn_id)
    rows = build_waterfall(outline.events, turn.finished_at or time.time())
    waits = turn.interruption if turn.state is TurnState.SUSPENDED else None
    return render_for_visitor(
        "turn.html",
        request,
        visitor,
        turn=turn,
        wait=(await client.workers.explain_waits([turn])).get(turn_id),
        attempts=attempts,
        changes=await asyncio.to_thread(_compare_attempts, turn, attempts),
        rows=rows,
        scale=TimeScale(max([0.05, *(bar.end for row in rows for bar in row.bars)])),
        bar_kinds=KINDS,
        usage={each.number: each.usage for each in attempts},
        labels={name: each for name, each in reversed([*LABELS.items()]) if each.title},
        events=[(event, summarize_event(event)) for event in outline.events],
        pieces=outline.pieces,
        began=outline.events[0].at if outline.events else turn.created_at,
        neighbours=await find_neighbours(client.lists, turn),
        deaths=find_deaths(outline.events, await read_exits(client.store)) if turn.strikes else [],
        droppable=visitor.operator and turn.outcome is Outcome.DEAD and await client.lists.is_dead_letter(turn_id),
        now=time.time(),
        bundles=visitor.operator and relay.build_bundle is not None,
        files=await list_readable_files(relay, turn_id, visitor.owner) if turn.outcome else [],
        trace=relay.settings.trace_page.replace(TRACE_ID, f"{find_trace_id(turn):032x}") if turn.outcome else "",
        decision={"id": secrets.token_hex(8), **build_proposal(turn, attempts)} if waits else None,
        question=show_question(waits) if waits else None,
        recap=summarise_turn_questions(turn, "en"),
        refresh=0 if turn.outcome or waits else _REFRESH_SECONDS,
        **await read_parts("turn.html", relay, visitor, turn),
    )


@router.get("/turns/{turn_id}/export")
async def send_export(turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor) -> Response:
    """Send a turn's record, attempts and events as a JSON file for download."""
    body = json.dumps(await export_turn(relay.client, turn_id, owner=visitor.owner), indent=1)
    name = {"content-disposition": f'attachment; filename="{printable_text(turn_id)}.json"'}
    return Response(body, media_type="application/json", headers=name)


@router.get("/turns/{turn_id}/bundle")
async def send_bundle(turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor) -> Response:
    """Send an operator the bug report about a turn as a ZIP file, without prompts."""
    require_operator(visitor.caller, "downloads a bundle: it shows settings")
    if relay.build_bundle is None:
        raise ApiError(404, "this relay makes no bundles: use `turns turn bundle`", code="not_found")
    body = await asyncio.to_thread(relay.build_bundle, await export_turn(relay.client, turn_id))
    name = {"content-disposition": f'attachment; filename="turns-{printable_text(turn_id)}.zip"'}
    return Response(body, media_type="application/zip", headers=name)


def _compare_attempts(turn: Turn, attempts: list[AttemptRecord]) -> dict[int, list[DiffLine] | None]:
    """Compare each attempt's answer with the previous one. Key 0 of the result has the final repair's changes."""
    found = {
        after.number: compare_texts(before.answer or before.text, after.answer or after.text)
        for before, after in itertools.pairwise(attempts)
    }
    for attempt in attempts:
        if attempt.mended:
            found[0] = compare_texts(attempt.answer or attempt.text, attempt.mended)
    return found


@router.post("/turns/{turn_id}/cancel")
async def cancel_turn(turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor, _form: CheckedForm) -> Response:
    """Cancel a turn and redirect to its page."""
    with explain_missing_token(visitor):
        await carry_out_action(
            relay.client, CANCEL, turn_id, by=visitor.actor_name, owner=visitor.changeable_owner, detail="page"
        )
    return redirect(f"/turns/{turn_id}")


@router.post("/turns/{turn_id}/drop")
async def drop_turn(turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor, _form: CheckedForm) -> Response:
    """Remove a turn from the dead letters and redirect to the overview. For operators only."""
    require_operator(visitor.caller, "drops dead letters")
    try:
        await carry_out_action(relay.client, DROP, turn_id, by=visitor.actor_name, detail="page")
    except TurnNotFinished:
        raise ApiError(409, "this turn is not a dead letter", code="turn_not_finished") from None
    return redirect("/overview")

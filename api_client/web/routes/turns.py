"""``/v1/turns``: submit turns now and read them later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.contract.events import Event, read_event_id, reset_event
from api_client.contract.order_log import name_caller
from api_client.contract.turn import Turn
from api_client.index.turn_row import build_turn_row
from api_client.operator_actions import carry_out_action
from api_client.turn_actions.cancel import ACTION as CANCEL
from api_client.web.bodies.models import TurnBody, openapi_operation
from api_client.web.errors import bad_request, display_value
from api_client.web.identity.access import CurrentCaller, NamedTurnId, VisibleOwner
from api_client.web.intake.turn_submission import submit_or_join
from api_client.web.list_filters import parse_cursor, parse_search
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.routes.completions import read_request
from api_client.web.streaming.turn_following import follow_turn, stream_error
from api_client.web.wire import PING, SSE_HEADERS, SSE_RESPONSES, JSONResponse, event_frame, turn_object

router = APIRouter(prefix="/v1/turns")


@router.post("", response_model=None, status_code=202, openapi_extra=openapi_operation(TurnBody))
async def submit_turn(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Store a turn and return at once."""
    ask = await read_request(request, relay, caller, "turns")
    turn_id = (
        await submit_or_join(request, replace(ask, question_hash=""), relay, caller)
    ).turn_id  # repeats are found by their idempotency key only
    url = f"/v1/turns/{turn_id}"
    body = {
        "object": "turn",
        "turn_id": turn_id,
        "session_id": ask.request.session_id,
        "url": url,
        "events_url": f"{url}/events",
    }
    return JSONResponse(body, 202, {"x-turn-id": turn_id, "location": url})


@router.get("", response_model=None)
async def list_turns(
    request: Request, relay: CurrentRelay, owner: VisibleOwner, limit: int = Query(50, ge=1, le=200), cursor: str = ""
) -> Response:
    """List matching turns without their answers: unfinished turns first, then finished ones, each newest first.

    An operator sees the turns of all owners, any other caller its own. A page may be short if the search took too
    long; ``next`` is the cursor of the next page, null on the last page.
    """
    search = parse_search(request.query_params, owner)
    page = await relay.client.lists.read_page(search, after=parse_cursor(cursor), count=limit)
    waits = await relay.client.workers.explain_waits(page.turns)
    data = [
        {"object": "turn", **build_turn_row(turn, waits.get(turn.turn_id), public=owner is not None)}
        for turn in page.turns
    ]
    return JSONResponse({"object": "list", "data": data, "next": str(page.next) if page.next else None})


@router.get("/{turn_id}", response_model=None)
async def show_turn(turn_id: NamedTurnId, relay: CurrentRelay, owner: VisibleOwner) -> Response:
    """Return the turn's record."""
    turn = await relay.client.reader.read_turn(turn_id, owner=owner)
    wait = (await relay.client.workers.explain_waits([turn])).get(turn_id)
    return JSONResponse({**turn_object(turn), "waits": wait.to_dict(public=owner is not None) if wait else None})


@router.get("/{turn_id}/attempts", response_model=None)
async def list_attempts(turn_id: NamedTurnId, relay: CurrentRelay, owner: VisibleOwner) -> Response:
    """Return the turn's attempts, oldest first."""
    attempts = await relay.client.reader.read_attempts(turn_id, owner=owner)
    return JSONResponse({"object": "list", "data": [attempt.to_dict() for attempt in attempts]})


@router.post("/{turn_id}/cancel", response_model=None)
@router.delete("/{turn_id}", response_model=None)
async def cancel_turn(
    turn_id: NamedTurnId, relay: CurrentRelay, owner: VisibleOwner, caller: CurrentCaller
) -> Response:
    """Cancel a turn. Cancelling twice, or cancelling a finished turn, changes nothing."""
    await carry_out_action(relay.client, CANCEL, turn_id, by=name_caller(caller.owner), owner=owner)
    return JSONResponse(turn_object(await relay.client.reader.read_turn(turn_id, owner=owner)))


@router.get("/{turn_id}/events", response_model=None, responses=SSE_RESPONSES)
async def stream_turn_events(
    turn_id: NamedTurnId, request: Request, relay: CurrentRelay, owner: VisibleOwner
) -> Response:
    """Stream the turn's events, from the first or after ``Last-Event-ID``, until ``turn.finished``.

    A reader that already has all events of a finished turn gets 204, so that an ``EventSource`` does not reconnect.
    """
    given = request.headers.get("last-event-id", "")
    try:
        after, epoch, at_ms = read_event_id(given) if given else (0, "", 0)
    except ValueError:
        message = f"Last-Event-ID: must be the id of an event of this stream; got {display_value(given)}"
        raise bad_request(message, param="Last-Event-ID", code="invalid_event_id") from None
    turn = await relay.client.reader.read_turn(turn_id, owner=owner)
    needs_reset = after > 0 and (epoch != turn.epoch or after > turn.seq)
    if needs_reset:
        after = 0
    if turn.has_ended_with(after, at_ms):
        return Response(status_code=204)
    frames = stream_turn(relay, turn, owner, after, at_ms, needs_reset=needs_reset)
    return StreamingResponse(frames, media_type="text/event-stream", headers=SSE_HEADERS)


async def stream_turn(
    relay: Relay, turn: Turn, owner: str | None, after: int, at_ms: int, *, needs_reset: bool
) -> AsyncIterator[bytes]:
    """Yield the turn's events after number ``after`` as server-sent events until the turn has finished.

    ``at_ms`` is the time of event ``after``. ``needs_reset``: the reader knows another history of the turn, and must
    first discard its events.
    """
    yield _make_frame(reset_event("the id is not of this log")) if needs_reset else PING
    try:
        with relay.readers.track_reader(turn.turn_id):
            found = follow_turn(relay, turn.turn_id, owner, after=after, epoch=turn.epoch, at_ms=at_ms)
            async with aclosing(found) as events:
                async for event in events:
                    yield PING if event is None else _make_frame(event)
    except Exception as error:
        yield event_frame("error", stream_error(error, turn.turn_id, turn.request.locale).to_body())


def _make_frame(event: Event) -> bytes:
    return event_frame(event.kind, event.to_dict(), event.event_id if event.seq else "")

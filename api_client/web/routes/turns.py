"""``/v1/turns``: submit turns now and read them later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.actions import Change, act
from api_client.contract.events import Event, read_event_id, reset
from api_client.contract.orders import name_caller
from api_client.contract.turn import Turn
from api_client.index.line import line_of
from api_client.web.bodies.body import has_body, read_object
from api_client.web.bodies.models import Body, TurnBody, operation, read
from api_client.web.errors import bad_request, shown
from api_client.web.identity.access import Asker, Named, Reach
from api_client.web.intake import submit
from api_client.web.intake.replaying import replay
from api_client.web.listing import place_of, search_of
from api_client.web.relay.relay import Relay, RelayOf
from api_client.web.routes.completions import ask_of
from api_client.web.streaming.following import broken, follow
from api_client.web.wire import JSON, PING, SSE_HEADERS, SSE_RESPONSES, event_frame, turn_object

router = APIRouter(prefix="/v1/turns")


class ReplayBody(Body):
    """The body of a request to replay a turn, with another model or message if wanted."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    message: str | None = Field(None, pattern=r"\S")


@router.post("", response_model=None, status_code=202, openapi_extra=operation(TurnBody))
async def submit_turn(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Store a turn and return at once."""
    ask = await ask_of(request, relay, caller, "turns")
    turn_id = (
        await submit(request, replace(ask, question=""), relay, caller)
    ).turn_id  # repeats are found by their idempotency key only
    url = f"/v1/turns/{turn_id}"
    body = {
        "object": "turn",
        "turn_id": turn_id,
        "session_id": ask.request.session_id,
        "url": url,
        "events_url": f"{url}/events",
    }
    return JSON(body, 202, {"x-turn-id": turn_id, "location": url})


@router.get("", response_model=None)
async def list_turns(
    request: Request, relay: RelayOf, owner: Reach, limit: int = Query(50, ge=1, le=200), cursor: str = ""
) -> Response:
    """List matching turns without their answers: unfinished turns first, then finished ones, each newest first.

    An operator sees the turns of all owners, any other caller its own. A page may be short if the search took too
    long; ``next`` is the cursor of the next page, null on the last page.
    """
    search = search_of(request.query_params, owner)
    page = await relay.client.lists.page(search, after=place_of(cursor), count=limit)
    waits = await relay.client.workers.waits(page.turns)
    data = [
        {"object": "turn", **line_of(turn, waits.get(turn.turn_id), public=owner is not None)} for turn in page.turns
    ]
    return JSON({"object": "list", "data": data, "next": str(page.next) if page.next else None})


@router.get("/{turn_id}", response_model=None)
async def show_turn(turn_id: Named, relay: RelayOf, owner: Reach) -> Response:
    """Return the turn's record."""
    turn = await relay.client.reader.get(turn_id, owner=owner)
    wait = (await relay.client.workers.waits([turn])).get(turn_id)
    return JSON({**turn_object(turn), "waits": wait.to_dict(public=owner is not None) if wait else None})


@router.get("/{turn_id}/attempts", response_model=None)
async def list_attempts(turn_id: Named, relay: RelayOf, owner: Reach) -> Response:
    """Return the turn's attempts, oldest first."""
    attempts = await relay.client.reader.attempts(turn_id, owner=owner)
    return JSON({"object": "list", "data": [attempt.to_dict() for attempt in attempts]})


@router.post("/{turn_id}/cancel", response_model=None)
@router.delete("/{turn_id}", response_model=None)
async def cancel_turn(turn_id: Named, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Cancel a turn. Cancelling twice, or cancelling a finished turn, changes nothing."""
    await act(relay.client, "cancel", turn_id, by=name_caller(caller.owner), owner=owner)
    return JSON(turn_object(await relay.client.reader.get(turn_id, owner=owner)))


@router.post("/{turn_id}/replay", response_model=None, status_code=202, openapi_extra=operation(ReplayBody))
async def replay_turn(turn_id: Named, request: Request, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Submit a finished turn again as a new turn, with the same or another ``model`` and ``message``.

    Repeating the same request creates no second turn.
    """
    asked = read(ReplayBody, await read_object(request, relay.settings.max_body_bytes) if has_body(request) else {})
    change = Change(model=asked.model or "", prompt=asked.message or "")
    done = await replay(relay, turn_id, change, caller=caller, reach=owner, by=name_caller(caller.owner))
    url = f"/v1/turns/{done.new_turn_id}"
    body = {"object": "turn", "turn_id": done.new_turn_id, "replay_of": turn_id, "url": url}
    return JSON({**body, "events_url": f"{url}/events"}, 202, {"x-turn-id": done.new_turn_id, "location": url})


@router.get("/{turn_id}/events", response_model=None, responses=SSE_RESPONSES)
async def stream_events(turn_id: Named, request: Request, relay: RelayOf, owner: Reach) -> Response:
    """Stream the turn's events, from the first or after ``Last-Event-ID``, until ``turn.finished``.

    A reader that already has all events of a finished turn gets 204, so that an ``EventSource`` does not reconnect.
    """
    given = request.headers.get("last-event-id", "")
    try:
        after, epoch, at_ms = read_event_id(given) if given else (0, "", 0)
    except ValueError:
        message = f"Last-Event-ID: must be the id of an event of this stream; got {shown(given)}"
        raise bad_request(message, param="Last-Event-ID", code="invalid_event_id") from None
    turn = await relay.client.reader.get(turn_id, owner=owner)
    stranger = after > 0 and (epoch != turn.epoch or after > turn.seq)
    if stranger:
        after = 0
    if turn.ended_with(after, at_ms):
        return Response(status_code=204)
    frames = stream(relay, turn, owner, after, at_ms, stranger=stranger)
    return StreamingResponse(frames, media_type="text/event-stream", headers=SSE_HEADERS)


async def stream(
    relay: Relay, turn: Turn, owner: str | None, after: int, at_ms: int, *, stranger: bool
) -> AsyncIterator[bytes]:
    """Yield the events of a turn as server-sent events, beginning after the event ``after``.

    A reader of another log is first told to discard its events.
    """
    yield _frame(reset("the id is not of this log")) if stranger else PING
    try:
        with relay.readers.reading(turn.turn_id):
            found = follow(relay, turn.turn_id, owner, after=after, epoch=turn.epoch, at_ms=at_ms)
            async with aclosing(found) as events:
                async for event in events:
                    yield PING if event is None else _frame(event)
    except Exception as error:
        yield event_frame("error", broken(error, turn.turn_id, turn.request.locale).body())


def _frame(event: Event) -> bytes:
    return event_frame(event.kind, event.to_dict(), event.event_id if event.seq else "")

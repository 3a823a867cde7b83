"""The addresses of the pages: overview, turns, one turn with its buttons, signing in and out, and their files."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.actions import act, decide
from api_client.contract.errors import NotFinished, TurnNotFound
from api_client.contract.escalation import DecisionKind
from api_client.contract.turn import AttemptRecord, Outcome, Turn, TurnState, replay_id
from api_client.figures.figures import SPANS
from api_client.figures.overview import overview
from api_client.index.finding import neighbours
from api_client.index.search import SORTS, STATUSES
from api_client.turns.history import deaths, export
from api_client.turns.proposal import proposal
from api_client.web.errors import ApiError, shown_text
from api_client.web.identity.access import Caller, needs_key, needs_token
from api_client.web.identity.origin import require_local
from api_client.web.listing import FILTERS, place_of, search_of
from api_client.web.pages import chart, comparison, events
from api_client.web.pages.page_route import page_router, see_other, visited
from api_client.web.pages.render import ASSETS, VERSION, page
from api_client.web.pages.visitor import (
    COOKIE,
    Form,
    LongForm,
    Visitor,
    VisitorOf,
    form_of,
    own_path,
    set_cookie,
    sign_in,
)
from api_client.web.pages.waterfall import KINDS, scale_of, waterfall
from api_client.web.relay import Relay, RelayOf
from api_client.web.submitting import require_room

log = structlog.get_logger(__name__)

#: Rows of the overview's lists, and of a page of turns.
_ROWS, _PAGE = 8, 50
#: Seconds between two refreshes of a page that shows something going on.
_REFRESH_SECONDS = {"overview": 5, "turn": 2}


router = page_router()


@router.get("/")
async def first_page(visitor: VisitorOf) -> Response:
    """Operators see the overview, others their turns."""
    return see_other("/turns" if visitor.owner else "/overview")


@router.get("/overview")
async def show_overview(request: Request, relay: RelayOf, visitor: VisitorOf, span: str = "24h") -> Response:
    """An installation at a glance, for operators; everybody else is redirected to their turns."""
    if visitor.owner:
        return see_other("/turns")
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    seen = await overview(relay.client, span, rows=_ROWS)
    pieces = seen.figures.pieces
    return visited(
        "overview.html",
        request,
        visitor,
        seen=seen,
        figures=seen.figures,
        total=seen.figures.whole.total,
        spans=SPANS,
        columns=chart.outcome_columns(pieces),
        rules=[(row, chart.rate_columns(pieces, row.name)) for row in seen.figures.rules],
        refresh=_REFRESH_SECONDS["overview"],
    )


@router.get("/turns")
async def list_turns(
    request: Request, relay: RelayOf, visitor: VisitorOf, turn: str = "", cursor: str = ""
) -> Response:
    """Turns, unfinished ones first. Filters and place are in the address, so that it can be saved and shared."""
    if turn.strip():
        return see_other(f"/turns/{quote(turn.strip(), safe='')}")
    search = search_of(request.query_params, visitor.owner)
    found = await relay.client.lists.page(search, after=place_of(cursor), count=_PAGE)
    filters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    filtered = {name: value for name, value in filters.items() if value}
    return visited(
        "turns.html",
        request,
        visitor,
        unfinished=[each for each in found.turns if not each.outcome],
        finished=[each for each in found.turns if each.outcome],
        older=f"/turns?{urlencode({**filtered, 'cursor': str(found.next)})}" if found.next else "",
        filters=filters,
        filtered=filtered,
        statuses=STATUSES,
        models=tuple(relay.settings.models),
        sorts=SORTS,
        cursor=cursor,
        refresh=0,
    )


@router.get("/turns/{turn_id}")
async def show_turn(request: Request, turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """One turn: what happened, why, and what became of it."""
    client = relay.client
    if (whole := await client.find(turn_id, owner=visitor.owner)) != turn_id:
        return see_other(f"/turns/{whole}")
    turn = await client.get(turn_id, owner=visitor.owner)
    attempts = await client.attempts(turn_id)
    outline = await client.outline(turn_id)
    rows = waterfall(outline.events, _now(turn))
    parked = turn.state is TurnState.PARKED
    return visited(
        "turn.html",
        request,
        visitor,
        turn=turn,
        attempts=attempts,
        changes=await asyncio.to_thread(_changes, turn, attempts),
        rows=rows,
        scale=scale_of(rows),
        bar_kinds=KINDS,
        events=[(event, events.told(event)) for event in outline.events],
        pieces=outline.pieces,
        began=outline.events[0].at if outline.events else turn.created_at,
        replay=await _replay_of(relay, turn),
        neighbours=await neighbours(client.lists, turn),
        deaths=deaths(outline.events),
        droppable=visitor.operator and turn.outcome is Outcome.DEAD and await client.lists.is_dead_letter(turn_id),
        now=time.time(),
        decision={"id": secrets.token_hex(8), **proposal(turn, attempts)} if parked else None,
        # A parked turn stands still, and what somebody writes about it must not be taken away.
        refresh=0 if turn.outcome or parked else _REFRESH_SECONDS["turn"],
    )


@router.get("/turns/{turn_id}/export")
async def export_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """The turn's record, attempts and events as a file."""
    body = json.dumps(await export(relay.client, turn_id, owner=visitor.owner), indent=1)
    name = {"content-disposition": f'attachment; filename="{shown_text(turn_id)}.json"'}
    return Response(body, media_type="application/json", headers=name)


def _now(turn: Turn) -> float:
    return turn.finished_at or time.time()


def _changes(turn: Turn, attempts: list[AttemptRecord]) -> dict[int, list[comparison.Line] | None]:
    """What each attempt changed against the one before; under 0, what the fallback changed."""
    found = {
        after.number: comparison.compare(before.answer or before.text, after.answer or after.text)
        for before, after in itertools.pairwise(attempts)
    }
    for attempt in attempts:
        if attempt.mended:
            found[0] = comparison.compare(attempt.answer or attempt.text, attempt.mended)
    return found


async def _replay_of(relay: RelayOf, turn: Turn) -> str:
    """The id of the turn this one was replayed as, if it was."""
    again = replay_id(turn.turn_id)
    return again if turn.outcome and await relay.client.lists.read([again]) else ""


@contextmanager
def _others_need_token(visitor: Visitor) -> Iterator[None]:
    """Without keys everybody's turns are shown; that one is not the visitor's to change is then said as it is."""
    try:
        yield
    except TurnNotFound:
        if visitor.keyless:
            raise needs_token() from None
        raise


@router.post("/turns/{turn_id}/cancel")
async def cancel_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Call the turn off, and show what became of it."""
    with _others_need_token(visitor):
        await act(relay.client, "cancel", turn_id, by=visitor.name, owner=visitor.changes, detail="page")
    return see_other(f"/turns/{turn_id}")


@router.post("/turns/{turn_id}/replay")
async def replay_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Hand the turn in again, and show the new turn. Twice makes one."""
    try:
        with _others_need_token(visitor):
            turn = await relay.client.get(turn_id, owner=visitor.changes)
        caller = Caller(owner=turn.request.owner, limits=visitor.limits)
        await require_room(relay, caller, relay.settings.locale, [replay_id(turn_id)])
        done = await act(relay.client, "replay", turn_id, by=visitor.name, owner=visitor.changes, detail="page")
    except NotFinished:
        raise ApiError(409, "this turn has not finished yet: cancel it first", code="turn_not_finished") from None
    return see_other(f"/turns/{done.new_turn_id}")


@router.post("/turns/{turn_id}/drop")
async def drop_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Take a dead letter off the list, and show what else there is. For operators: the list is theirs."""
    if visitor.keyless:
        raise needs_token()
    if not visitor.operator:
        raise ApiError(403, "only an operator drops dead letters", code="operators_only")
    try:
        await act(relay.client, "drop", turn_id, by=visitor.name, detail="page")
    except NotFinished:
        raise ApiError(409, "this turn is not a dead letter", code="turn_not_finished") from None
    return see_other("/overview")


@router.post("/turns/{turn_id}/decision")
async def decide_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, form: LongForm) -> Response:
    """Decide on a parked turn, and show what became of it. The same form sent twice decides once."""
    if visitor.keyless:
        raise needs_token()
    told = {name: form.get(name, "") for name in ("decision", "note", "text", "decision_id")}
    text = told["text"].replace("\r\n", "\n") if told["decision"] == DecisionKind.EDIT else ""
    await decide(
        relay.client,
        turn_id,
        told["decision"],
        by=visitor.name,
        note=told["note"].replace("\r\n", "\n"),
        text=text,
        owner=visitor.changes,
        decision_id=told["decision_id"],
    )
    return see_other(f"/turns/{turn_id}")


@router.get("/sign-in")
async def sign_in_page(request: Request, relay: RelayOf, next: str = "") -> Response:  # noqa: A002 the field's name
    """The form for the key, or where no keys are configured for the operator's token."""
    return _sign_in_form(request, relay, own_path(next))


@router.post("/sign-in")
async def take_key(request: Request, relay: RelayOf) -> Response:
    """Exchange a key for a cookie. Who was wrong too often has to wait, whatever the key."""
    if not needs_key(relay):
        require_local(request)
    fields = await form_of(request)
    back, address = own_path(fields.get("next", "")), request.client.host if request.client else ""
    if seconds := math.ceil(relay.guesses.wait(address)):
        message = f"too many wrong keys came from here; try again in {seconds} s"
        raise ApiError(429, message, code="too_many_guesses", headers={"retry-after": str(seconds)})
    token = await sign_in(relay, fields.get("key", "").strip())
    if token is None:
        relay.guesses.wrong(address)
        log.warning("page.sign_in_refused")
        return _sign_in_form(request, relay, back, wrong=True)
    log.info("page.signed_in")
    response = see_other(back)
    set_cookie(request, response, token)
    return response


def _sign_in_form(request: Request, relay: Relay, back: str, *, wrong: bool = False) -> Response:
    return page(
        "sign_in.html",
        403 if wrong else 200,
        back=back,
        wrong=wrong,
        keyless=not needs_key(relay),
        visitor=None,
        refresh=0,
        path=request.url.path,
    )


@router.post("/sign-out")
async def sign_out(relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Forget the browser."""
    await relay.client.sign_ins.forget(visitor.token)
    response = see_other("/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/favicon.ico")
async def icon() -> Response:
    """For browsers that ask for it without having read a page."""
    return see_other(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def asset(version: str, name: str) -> Response:
    """A file the pages load. Its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})

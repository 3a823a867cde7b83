"""The addresses of the pages: overview, turns, one turn with its buttons, signing in and out, and their files."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import structlog
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api_client.actions import act, decide
from api_client.contract.errors import HelixError, NotFinished, StoreUnavailable, TurnNotFound
from api_client.contract.escalation import DecisionKind
from api_client.contract.turn import AttemptRecord, Outcome, Turn, TurnState, replay_id
from api_client.contract.words.store_refusals import Refusal
from api_client.figures.figures import SPANS
from api_client.figures.overview import overview
from api_client.index.lists import STATUSES, Place, Search
from api_client.turns.proposal import proposal
from api_client.web.errors import ApiError, from_contract
from api_client.web.identity.access import Caller, needs_key, needs_token
from api_client.web.identity.origin import require_local
from api_client.web.pages import chart, comparison, events
from api_client.web.pages.render import ASSETS, HEADERS, VERSION, page
from api_client.web.pages.visitor import (
    COOKIE,
    Form,
    LongForm,
    NotSignedIn,
    Visitor,
    VisitorOf,
    form_of,
    own_path,
    set_cookie,
    sign_in,
    sign_in_address,
)
from api_client.web.pages.waterfall import KINDS, scale_of, waterfall
from api_client.web.relay import Relay, RelayOf, relay_of
from api_client.web.submitting import require_room

log = structlog.get_logger(__name__)

#: Rows of the overview's lists, and of a page of turns.
_ROWS, _PAGE = 8, 50
#: Seconds between two refreshes of a page that shows something going on.
_REFRESH_SECONDS = {"overview": 5, "turn": 2}


class _PageRoute(APIRoute):
    """A route whose errors are pages too, and whose every answer has the pages' headers."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """The handler, with errors answered."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response: Response = await handle(request)
            except NotSignedIn as refused:
                response = _see_other(sign_in_address(refused.back))
            except ApiError as error:
                response = _error_page(error)
            except HelixError as error:
                refusal = error.refusal if isinstance(error, StoreUnavailable) else None
                response = _error_page(from_contract(error, relay_of(request).settings.locale), refusal)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


router = APIRouter(route_class=_PageRoute, include_in_schema=False)


@router.get("/")
async def first_page(visitor: VisitorOf) -> Response:
    """Operators see the overview, others their turns."""
    return _see_other("/turns" if visitor.owner else "/overview")


@router.get("/overview")
async def show_overview(request: Request, relay: RelayOf, visitor: VisitorOf, span: str = "24h") -> Response:
    """An installation at a glance, for operators; everybody else is redirected to their turns."""
    if visitor.owner:
        return _see_other("/turns")
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    seen = await overview(relay.client, span, rows=_ROWS)
    pieces = seen.figures.pieces
    return _page(
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
    request: Request,
    relay: RelayOf,
    visitor: VisitorOf,
    status: str = "",
    session: str = "",
    turn: str = "",
    before: str = "",
    lost: str = "",
) -> Response:
    """Turns, unfinished ones first. The filter and the place are in the address, so that it can be shared."""
    if turn.strip():
        return _see_other(f"/turns/{turn.strip()}")
    if status and status not in STATUSES:
        raise ApiError(404, "there is no such status", code="not_found")
    try:
        place = Place.parse(before) if before else None
    except ValueError:
        raise ApiError(404, "there is no such place in the list", code="not_found") from None
    search = Search(owner=visitor.owner or "", session_id=session.strip(), status=status, lost=lost == "1")
    lists = relay.client.lists
    unfinished = await lists.unfinished(search) if search.unfinished and place is None else []
    finished = await lists.finished(search, before=place, count=_PAGE) if search.finished else None
    older = finished.older if finished else None
    filters = {"status": search.status, "session": search.session_id, "lost": "1" if search.lost else ""}
    filtered = {name: value for name, value in filters.items() if value}
    return _page(
        "turns.html",
        request,
        visitor,
        unfinished=await lists.read(found.turn_id for found in unfinished[:_PAGE]),
        more_unfinished=max(0, len(unfinished) - _PAGE),
        finished=finished.turns if finished else (),
        older=f"/turns?{urlencode({**filtered, 'before': str(older)})}" if older else "",
        filters=filters,
        filtered=filtered,
        statuses=STATUSES,
        before=before,
        refresh=0,
    )


@router.get("/turns/{turn_id}")
async def show_turn(request: Request, turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """One turn: what happened, why, and what became of it."""
    client = relay.client
    turn = await client.get(turn_id, owner=visitor.owner)
    attempts = await client.attempts(turn_id)
    outline = await client.outline(turn_id)
    rows = waterfall(outline.events, _now(turn))
    parked = turn.state is TurnState.PARKED
    return _page(
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
        droppable=visitor.operator and turn.outcome is Outcome.DEAD and await client.lists.is_dead_letter(turn_id),
        now=time.time(),
        decision={"id": secrets.token_hex(8), **proposal(turn, attempts)} if parked else None,
        # A parked turn stands still, and what somebody writes about it must not be taken away.
        refresh=0 if turn.outcome or parked else _REFRESH_SECONDS["turn"],
    )


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
    return _see_other(f"/turns/{turn_id}")


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
    return _see_other(f"/turns/{done.new_turn_id}")


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
    return _see_other("/overview")


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
    return _see_other(f"/turns/{turn_id}")


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
    response = _see_other(back)
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
    response = _see_other("/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/favicon.ico")
async def icon() -> Response:
    """For browsers that ask for it without having read a page."""
    return _see_other(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def asset(version: str, name: str) -> Response:
    """A file the pages load. Its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})


def _page(template: str, request: Request, visitor: Visitor, **values: Any) -> Response:
    response = page(template, visitor=visitor, path=request.url.path, **values)
    if visitor.new:
        set_cookie(request, response, visitor.token)
    return response


def _error_page(error: ApiError, refusal: Refusal | None = None) -> Response:
    return page(
        "error.html", error.status, error.headers, error=error, refusal=refusal, visitor=None, refresh=0, path=""
    )


def _see_other(address: str) -> Response:
    return RedirectResponse(address, 303)

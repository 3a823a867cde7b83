"""The page that lists turns, with bulk actions on the listed turns: count first, then confirm."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.errors import BadRequest, SessionBusy, TurnNotFinished, TurnNotFound
from api_client.contract.turn_labels import LISTED
from api_client.index.search import SORTS, STATUSES, Cursor, FoundTurn, Search
from api_client.operator_actions import ActionResult, TurnAction, count_by_status, select_targets
from api_client.turn_actions.registry import ACTIONS
from api_client.web.errors import ApiError, bad_request
from api_client.web.identity.access import require_operator
from api_client.web.intake.caller_actions import act_for_caller
from api_client.web.list_filters import FILTERS, parse_cursor, parse_search
from api_client.web.pages.rendering import page_router, redirect, render_for_visitor
from api_client.web.pages.visitor import CheckedForm, CurrentVisitor, Visitor
from api_client.web.relay.relay import CurrentRelay, Relay

_PAGE_ROWS = 50
#: A searched text that can only be the id of a turn, or its beginning.
_TURN_ID = re.compile(r"turn-[0-9a-f]{4,32}")
#: Filters that the form always shows; the others open on demand.
_FIRST_FILTERS = ("text", "status", "model")
#: Seconds after which a bulk action stops, reports its progress and offers to continue.
_ACT_SECONDS = 10.0
_MAX_NAMED = 20
VIEWS = {
    "Failed in 24 h": {"status": "unsuccessful", "since": "24h"},
    "Waiting for a person": {"status": "suspended"},
    "Dead letters": {"status": "dead"},
    "Lost a worker": {"lost": "1", "since": "7d"},
}

router = page_router()


@router.get("/turns")
async def list_turns(
    request: Request, relay: CurrentRelay, visitor: CurrentVisitor, turn: str = "", cursor: str = ""
) -> Response:
    """Show the turns that match the filters in the URL, unfinished turns first.

    Filters and position are part of the address, so that people can save and share the list.
    """
    text = request.query_params.get("text", "").strip()
    if named := turn.strip() or (text if _TURN_ID.fullmatch(text) else ""):
        return redirect(f"/turns/{quote(named, safe='')}")
    search = parse_search(request.query_params, visitor.owner)
    found = await relay.client.lists.read_page(search, after=parse_cursor(cursor), count=_PAGE_ROWS)
    filters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    filtered = {name: value for name, value in filters.items() if value}
    return render_for_visitor(
        "turns.html",
        request,
        visitor,
        waits=await relay.client.workers.explain_waits(found.turns),
        unfinished=[each for each in found.turns if not each.outcome],
        finished=[each for each in found.turns if each.outcome],
        older=f"/turns?{urlencode({**filtered, 'cursor': str(found.next)})}" if found.next else "",
        filters=filters,
        filtered=filtered,
        more_filters={*filtered} - {*_FIRST_FILTERS},
        views={name: f"/turns?{urlencode(asked)}" for name, asked in VIEWS.items()},
        actions=[each.name for each in ACTIONS.values() if visitor.operator or not each.operators_only],
        statuses=STATUSES,
        models=tuple(relay.settings.models),
        labels={name: tuple(getattr(relay.settings, each.setting)) for name, each in LISTED.items()},
        sorts=SORTS,
        cursor=cursor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BulkAction:
    """An action on many turns, with the turns that match its filters, oldest first."""

    action: TurnAction
    search: Search
    form_fields: dict[str, str]
    turns: list[FoundTurn]


@router.get("/turns/bulk")
async def count_bulk(request: Request, relay: CurrentRelay, visitor: CurrentVisitor, action: str = "") -> Response:
    """Show how many turns a bulk action would affect, without changing any turn."""
    filters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    bulk = await _prepare_bulk(relay, visitor, action, filters)
    return _bulk_page(request, relay, visitor, bulk, bulk_id=secrets.token_hex(4))


@router.post("/turns/bulk")
async def act_in_bulk(request: Request, relay: CurrentRelay, visitor: CurrentVisitor, form: CheckedForm) -> Response:
    """Apply a confirmed action to many turns. Repeating an interrupted request acts on no turn twice."""
    bulk = await _prepare_bulk(relay, visitor, form.get("action", ""), {name: form.get(name, "") for name in FILTERS})
    bulk_id = form.get("bulk", "")
    if not (bulk_id.isalnum() and bulk_id.isascii() and len(bulk_id) <= 16):
        raise bad_request("bulk: must be the id that the page gave", param="bulk")
    after = parse_cursor(form.get("cursor", ""))
    rest = [each for each in bulk.turns if after is None or (each.created_at, each.turn_id) > (after.at, after.turn_id)]
    bulk = replace(bulk, action=bulk.action.with_model(form.get("as_model", "")))
    done, stopped = await _act_on_turns(relay, visitor, bulk, rest, bulk_id)
    left = rest[len(done) :]
    last = done[-1].turn_id if done else ""
    cursor = next((str(Cursor("f", each.created_at, each.turn_id)) for each in rest if each.turn_id == last), "")
    return _bulk_page(
        request,
        relay,
        visitor,
        replace(bulk, turns=left),
        bulk_id=bulk_id,
        cursor=cursor or form.get("cursor", ""),
        model=form.get("as_model", ""),
        done=sum(each.done and not each.before for each in done),
        before=sum(each.before for each in done),
        passed_over=[each for each in done if not each.done],
        stopped=stopped,
        confirmed=True,
    )


async def _prepare_bulk(relay: Relay, visitor: Visitor, name: str, filters: dict[str, str]) -> _BulkAction:
    if not (action := ACTIONS.get(name)):
        raise bad_request(f"action: must be one of {', '.join(ACTIONS)}", param="action")
    if action.operators_only:
        require_operator(visitor.caller, action.operators_only)
    search = parse_search(filters, visitor.changeable_owner)
    # Leave out turns that begin or end later: nobody counted them, and acting on new turns would never end.
    search = replace(search, until=search.until or time.time())
    asked = {name: value for name, value in filters.items() if value and name != "sort"}
    for name, at in (("since", search.since), ("until", search.until)):
        if at:
            asked[name] = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return _BulkAction(
        action=action, search=search, form_fields=asked, turns=await select_targets(relay.client, action, search)
    )


async def _act_on_turns(
    relay: Relay, visitor: Visitor, bulk: _BulkAction, turns: list[FoundTurn], bulk_id: str
) -> tuple[list[ActionResult], str]:
    until, done = time.monotonic() + _ACT_SECONDS, list[ActionResult]()
    for turn in turns:
        try:
            result = await act_for_caller(
                relay,
                bulk.action,
                turn.turn_id,
                caller=visitor.caller,
                turn_owner=visitor.changeable_owner,
                by=visitor.actor_name,
                bulk=bulk_id,
                detail=f"page: {bulk.search}",
            )
        except (TurnNotFound, TurnNotFinished, SessionBusy, BadRequest) as error:
            result = ActionResult(turn.turn_id, False, str(error))
        except ApiError as error:  # a limit or a forbidden model: all other turns would fail too
            return done, error.message
        done.append(result)
        if time.monotonic() > until:
            break
    return done, ""


def _bulk_page(
    request: Request, relay: Relay, visitor: Visitor, bulk: _BulkAction, *, bulk_id: str, **more: Any
) -> Response:
    nothing = {"cursor": "", "model": "", "done": 0, "before": 0, "passed_over": [], "stopped": "", "confirmed": False}
    return render_for_visitor(
        "bulk.html",
        request,
        visitor,
        bulk=bulk,
        bulk_id=bulk_id,
        counts=count_by_status(bulk.turns),
        back=f"/turns?{urlencode(bulk.form_fields)}",
        models=tuple(visitor.caller.visible_settings(relay.settings).models),
        named=_MAX_NAMED,
        **(nothing | more),
    )

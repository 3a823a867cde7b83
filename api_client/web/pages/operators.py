"""Pages for operators alone: those of the nouns (``api_client/nouns.py``), policies, and the audit log."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.actions import order_worker
from api_client.api_keys import with_names
from api_client.contract.errors import BadRequest, TurnNotFound
from api_client.contract.owners import owner_named
from api_client.contract.worker_order import WorkerOrder
from api_client.figures.figures import SPANS
from api_client.figures.spans import seconds_of
from api_client.nouns import PAUSES, SHEETS, WORKERS, Button, Noun, Sheet, Sight
from api_client.pauses.pause import Pause
from api_client.store.audit import grouped
from api_client.web.errors import ApiError
from api_client.web.identity.access import require_operator
from api_client.web.pages.render import page_router, see_other, visited
from api_client.web.pages.visitor import Form, OverseerOf, VisitorOf
from api_client.web.relay.relay import RelayOf

router = page_router()
_GROUPS = 50
_DAY_SECONDS = 86_400.0
#: Rows of a noun's table.
_ROWS = 100


def _show(sheet: Sheet) -> Callable[..., Awaitable[Response]]:
    """Return what shows a page of nouns to operators; others are led to their turns."""

    async def show(request: Request, relay: RelayOf, visitor: OverseerOf) -> Response:
        return visited(
            sheet.template,
            request,
            visitor,
            sheet=sheet,
            tables=[(noun, *await noun.read(relay.client, _ROWS)) for noun in sheet.nouns],
            sight=Sight(time.time(), with_names(relay.settings.keys_path)),
            refresh=sheet.refresh_seconds,
            **await sheet.more(relay.client),
        )

    return show


def _press(sheet: Sheet, noun: Noun[Any], button: Button[Any]) -> Callable[..., Awaitable[Response]]:

    async def press(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
        require_operator(visitor.caller, noun.doing)
        await button.act(relay.client, form, visitor.name)
        return see_other(sheet.address)

    return press


def add(to: APIRouter, sheet: Sheet) -> None:
    """Give a page of nouns its address, and its buttons theirs."""
    if sheet.template:
        to.add_api_route(sheet.address, _show(sheet))
    for noun in sheet.nouns:
        for button in noun.buttons:
            to.add_api_route(f"{sheet.address}/{button.name}", _press(sheet, noun, button), methods=["POST"])


for _sheet in SHEETS:
    add(router, _sheet)


@router.post("/paused")
async def pause(relay: RelayOf, visitor: VisitorOf, form: Form) -> Response:
    """Pause something, and show it."""
    require_operator(visitor.caller, PAUSES.doing)
    try:
        seconds = seconds_of(form["for"].strip()) if form.get("for", "").strip() else 0.0
    except ValueError as error:
        raise BadRequest(str(error), param="for") from None
    what, name = form.get("what", ""), form.get("name", "").strip()
    name = "" if what == "intake" else owner_named(name) if what == "owner" else name
    begun = Pause(what=what, name=name, reason=form.get("reason", "").strip(), by=visitor.name)
    await relay.client.pauses.pause(begun, seconds=seconds)
    return see_other("/paused")


@router.post("/workers/{name}/{order}")
async def order(name: str, order: WorkerOrder, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Order a worker to take nothing new, to end, or to go on."""
    require_operator(visitor.caller, WORKERS.doing)
    await order_worker(relay.client, name, order, by=visitor.name, detail="page")
    return see_other("/workers")


@router.get("/audit")
async def show_audit(
    request: Request, relay: RelayOf, visitor: OverseerOf, span: str = "7d", turn: str = "", page: int = 1
) -> Response:
    """Return who did what to which turn and when, newest first; what was refused is said to be so."""
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    since = time.time() - SPANS[span][0]
    lines = await relay.client.audit.read(since=since, turn_id=turn.strip())
    groups, start = grouped(lines[::-1]), _GROUPS * (max(page, 1) - 1)
    return visited(
        "audit.html",
        request,
        visitor,
        groups=groups[start : start + _GROUPS],
        page=max(page, 1),
        more=len(groups) > start + _GROUPS,
        named=with_names(relay.settings.keys_path),
        span=span,
        spans=SPANS,
        turn=turn,
    )


@router.get("/policies")
async def show_policies(request: Request, relay: RelayOf, visitor: OverseerOf) -> Response:
    """The flow versions with their figures, and how policies would have judged recorded answers."""
    client = relay.client
    active, gone = await client.flows.active(), await client.flows.rolled_back()
    rows = {row.name: row for row in (await client.figures.stats(_DAY_SECONDS, "flow")).rows}
    total = sum(active.values())
    versions = [
        {"name": name, "share": active.get(name, 0) / total, "row": rows.get(name), "gone": gone.get(name)}
        for name in relay.settings.flow_version
    ]
    replays = await client.policy_replays.all()
    return visited("policies.html", request, visitor, versions=versions, replays=replays)


@router.get("/policies/{replay_id}")
async def show_policy_replay(request: Request, replay_id: str, relay: RelayOf, visitor: OverseerOf) -> Response:
    """One comparison of a policy with what was decided, with the answers that are judged differently."""
    replay = await relay.client.policy_replays.get(replay_id)
    if replay is None:
        raise ApiError(404, "no such comparison is kept; see /policies", code="not_found")
    changes = replay.found["changes"]
    texts = [await _answer(relay, change["turn_id"], change["attempt"]) for change in changes]
    rules = sorted({*replay.found["by_rule"], *replay.found["in_shadow"]})
    more = replay.found["rejected_now"] + replay.found["accepted_now"] - len(changes)
    return visited(
        "policy_replay.html",
        request,
        visitor,
        replay=replay,
        rules=rules,
        texts=list(zip(changes, texts, strict=True)),
        more=more,
    )


async def _answer(relay: RelayOf, turn_id: str, number: int) -> str | None:
    """The answer of an attempt as it was judged; None where retention has removed it."""
    try:
        attempts = await relay.client.reader.attempts(turn_id)
    except TurnNotFound:
        return None
    return next((each.answer or each.text for each in attempts if each.number == number), None)

"""Decisions about a suspended turn, by a form or through a signed link, whose opening alone changes nothing."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.clock_time import format_clock_time
from api_client.contract.decision import check_decision
from api_client.contract.errors import TurnNotSuspended
from api_client.contract.interruption import Interruption
from api_client.contract.order_log import LINK_HOLDER
from api_client.interruptions.question import QuestionView
from api_client.interruptions.registry import show_question
from api_client.web.identity.access import requires_key, token_required_error
from api_client.web.identity.origin import require_local
from api_client.web.pages.rendering import page_router, redirect, render_page
from api_client.web.pages.visitor import CheckedLongForm, CurrentVisitor, read_form
from api_client.web.relay.file_links import parse_integer
from api_client.web.relay.question_links import LinkedQuestion, read_question_link
from api_client.web.relay.relay import CurrentRelay
from api_client.web.sentences import translate

router = page_router()


@router.get("/answer/{turn_id}")
async def show_question_page(
    request: Request, turn_id: str, relay: CurrentRelay, suspended: str = "", until: str = "", signature: str = ""
) -> Response:
    """Show a suspended turn's question to the holder of a signed link, or say that it is closed."""
    if not requires_key(relay):
        require_local(request)
    asked = await read_question_link(relay, turn_id, suspended, until, signature)
    return _question_page(request, asked, "" if asked.is_open else _describe_closed(asked))


@router.post("/answer/{turn_id}")
async def record_answer(
    request: Request, turn_id: str, relay: CurrentRelay, suspended: str = "", until: str = "", signature: str = ""
) -> Response:
    """Record the answer that a person gives through a signed link, and show a confirmation.

    Answer 409 if the question is no longer open; the page then shows the decision that was recorded first.
    """
    if not requires_key(relay):
        require_local(request)
    form = await read_form(request)
    asked, kind = await read_question_link(relay, turn_id, suspended, until, signature), form.get("decision", "")
    note, orders = form.get("note", "").replace("\r\n", "\n"), relay.client.orders
    check_decision(kind, note, "")
    try:
        if not asked.is_open:
            async with orders.place_order(kind, by=LINK_HOLDER, turn_id=turn_id, detail="link"):
                raise TurnNotSuspended(turn_id, "the question waits for no answer any more")
        await relay.client.inbox.decide_turn(
            turn_id,
            kind,
            by=LINK_HOLDER,
            note=note,
            owner=asked.turn.request.owner,
            suspended_at=asked.suspended_ms / 1000,
            how="link",
        )
    except TurnNotSuspended:
        return _question_page(
            request, asked, _describe_closed(await read_question_link(relay, turn_id, suspended, until, signature)), 409
        )
    choice = _get_question(asked).find_choice(kind)
    return _question_page(request, asked, choice.said or choice.label)


def _describe_closed(asked: LinkedQuestion) -> str:
    turn, locale = asked.turn, asked.turn.request.locale
    decision = turn.decision
    if decision is None or decision.timed_out or round(turn.suspended_at * 1000) != asked.suspended_ms:
        return translate("waits_no_more", locale)
    word = _get_question(asked).find_choice(decision.kind.value).label
    who = translate("link_holder", locale) if decision.by == LINK_HOLDER else decision.who
    return translate("said_before", locale, what=word, who=who)


def _get_question(asked: LinkedQuestion) -> QuestionView:
    turn = asked.turn
    return show_question(turn.interruption or Interruption(kind="none"), turn.request.locale)


def _question_page(request: Request, asked: LinkedQuestion, said: str, status: int = 200) -> Response:
    turn, locale = asked.turn, asked.turn.request.locale
    silence = _get_question(asked).find_choice(turn.interruption.silence).label if turn.interruption else ""
    until = translate("waits_until", locale, moment=format_clock_time(asked.expires_at, time.time()), silence=silence)
    place, query = f"/answer/{turn.turn_id}", f"?{request.url.query}"
    shown: Any = {"question": _get_question(asked), "said": said, "until": until}
    return render_page("answer.html", status, locale=locale, place=place, query=query, **shown)


@router.post("/turns/{turn_id}/decision")
async def decide_turn(turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor, form: CheckedLongForm) -> Response:
    """Record a visitor's decision about a suspended turn and redirect to the turn's page."""
    if visitor.keyless:
        raise token_required_error()
    fields = {name: form.get(name, "") for name in ("decision", "note", "text", "decision_id")}
    turn = await relay.client.reader.read_turn(turn_id, owner=visitor.owner)
    question = show_question(turn.interruption) if turn.interruption else None
    takes_text = question is not None and question.find_choice(fields["decision"]).takes == "text"
    text = fields["text"].replace("\r\n", "\n") if takes_text else ""
    await relay.client.inbox.decide_turn(
        turn_id,
        fields["decision"],
        by=visitor.actor_name,
        note=fields["note"].replace("\r\n", "\n"),
        text=text,
        owner=visitor.changeable_owner,
        decision_id=fields["decision_id"],
        suspended_at=parse_integer(form.get("suspended", "")) / 1000,
    )
    return redirect(f"/turns/{turn_id}")

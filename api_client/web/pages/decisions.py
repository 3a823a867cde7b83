"""Decide on a suspended turn, with the form on the turn's page or through a signed link in a chat.

Opening the link changes nothing, because chat and mail programs fetch the links that they show.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.clock_time import clock_time
from api_client.contract.decision import check_decision
from api_client.contract.errors import NotSuspended
from api_client.contract.interruption import Interruption
from api_client.contract.orders import LINK_HOLDER
from api_client.interruptions.question import QuestionView
from api_client.interruptions.registry import question_of
from api_client.web.identity.access import needs_key, needs_token
from api_client.web.identity.origin import require_local
from api_client.web.pages.render import page, page_router, see_other
from api_client.web.pages.visitor import LongForm, VisitorOf, form_of
from api_client.web.relay.file_links import whole
from api_client.web.relay.question_links import LinkedQuestion, asked_by
from api_client.web.relay.relay import RelayOf
from api_client.web.words import say

router = page_router()


@router.get("/answer/{turn_id}")
async def ask(
    request: Request, turn_id: str, relay: RelayOf, suspended: str = "", until: str = "", signature: str = ""
) -> Response:
    """Show the page with the question of a suspended turn, or a page that says that the question is closed."""
    if not needs_key(relay):
        require_local(request)
    asked = await asked_by(relay, turn_id, suspended, until, signature)
    return _shown(asked, "" if asked.waits else _over(asked))


@router.post("/answer/{turn_id}")
async def answer(
    request: Request, turn_id: str, relay: RelayOf, suspended: str = "", until: str = "", signature: str = ""
) -> Response:
    """Record the answer that a person gives through a signed link, and show a confirmation.

    Answer 409 if the question is no longer open; the page then shows the decision that was recorded first.
    """
    if not needs_key(relay):
        require_local(request)
    form = await form_of(request)
    asked, kind = await asked_by(relay, turn_id, suspended, until, signature), form.get("decision", "")
    note, orders = form.get("note", "").replace("\r\n", "\n"), relay.client.orders
    check_decision(kind, note, "")
    try:
        if not asked.waits:
            async with orders.place(kind, by=LINK_HOLDER, turn_id=turn_id, detail="link"):
                raise NotSuspended(turn_id, "the question waits for no answer any more")
        await relay.client.inbox.decide(
            turn_id,
            kind,
            by=LINK_HOLDER,
            note=note,
            owner=asked.turn.request.owner,
            suspended_at=asked.suspended_ms / 1000,
            how="link",
        )
    except NotSuspended:
        return _shown(asked, _over(await asked_by(relay, turn_id, suspended, until, signature)), 409)
    choice = _question(asked).choice(kind)
    return _shown(asked, choice.said or choice.label)


def _over(asked: LinkedQuestion) -> str:
    turn, locale = asked.turn, asked.turn.request.locale
    decision = turn.decision
    if decision is None or decision.timed_out or round(turn.suspended_at * 1000) != asked.suspended_ms:
        return say("waits_no_more", locale)
    word = _question(asked).choice(decision.kind.value).label
    who = say("link_holder", locale) if decision.by == LINK_HOLDER else decision.who
    return say("said_before", locale, what=word, who=who)


def _question(asked: LinkedQuestion) -> QuestionView:
    turn = asked.turn
    return question_of(turn.interruption or Interruption(kind="none"), turn.request.locale)


def _shown(asked: LinkedQuestion, said: str, status: int = 200) -> Response:
    turn, locale = asked.turn, asked.turn.request.locale
    silence = _question(asked).choice(turn.interruption.silence).label if turn.interruption else ""
    until = say("waits_until", locale, moment=clock_time(asked.until, time.time()), silence=silence)
    return page("answer.html", status, locale=locale, question=_question(asked), said=said, until=until)


@router.post("/turns/{turn_id}/decision")
async def decide_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, form: LongForm) -> Response:
    """Record a visitor's decision on a suspended turn and show the turn's page; repeating the form changes nothing."""
    if visitor.keyless:
        raise needs_token()
    fields = {name: form.get(name, "") for name in ("decision", "note", "text", "decision_id")}
    turn = await relay.client.reader.get(turn_id, owner=visitor.owner)
    question = question_of(turn.interruption) if turn.interruption else None
    takes_text = question is not None and question.choice(fields["decision"]).takes == "text"
    text = fields["text"].replace("\r\n", "\n") if takes_text else ""
    await relay.client.inbox.decide(
        turn_id,
        fields["decision"],
        by=visitor.name,
        note=fields["note"].replace("\r\n", "\n"),
        text=text,
        owner=visitor.changes,
        decision_id=fields["decision_id"],
        suspended_at=whole(form.get("suspended", "")) / 1000,
    )
    return see_other(f"/turns/{turn_id}")

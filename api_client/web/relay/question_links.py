"""Signed links to the question of a suspended turn; the holder of a link may answer the question once."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from api_client.contract.errors import BadRequest, TurnNotFound
from api_client.contract.event_kinds import TurnSuspended
from api_client.contract.events import Event
from api_client.contract.interruption import Answerer
from api_client.contract.order_log import LINK_HOLDER
from api_client.contract.turn import Turn, TurnState
from api_client.web.relay.file_links import parse_integer
from api_client.web.relay.relay import Relay

#: Kind of link: a signature of one kind opens no other kind.
_QUESTION = "question"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedQuestion:
    """The question of a suspended turn that a signed link leads to.

    ``suspended_ms`` is when the question was asked (milliseconds since the epoch), ``expires_at`` its end (seconds).
    """

    turn: Turn
    suspended_ms: int
    expires_at: int

    @property
    def is_open(self) -> bool:
        turn = self.turn
        same = turn.state is TurnState.SUSPENDED and round(turn.suspended_at * 1000) == self.suspended_ms
        return same and turn.interruption is not None and time.time() < self.expires_at


async def sign_question_link(relay: Relay, turn_id: str, event: Event) -> str:
    """Return the path of a link for answering a new question, or '' if the turn's owner may not answer it.

    If a link alone is not enough, the path leads to the turn's page.
    """
    body = event.body
    asked = body.interruption if isinstance(body, TurnSuspended) else None
    if asked is None or asked.who == Answerer.OPERATOR:
        return ""
    if asked.who != Answerer.OWNER:
        return f"/turns/{turn_id}"
    suspended, until = round(event.at * 1000), math.floor(event.at + asked.wait_seconds)
    signature = await relay.client.links.sign_link(_QUESTION, turn_id, str(suspended), until=until)
    return f"/answer/{turn_id}?suspended={suspended}&until={until}&signature={signature}"


async def read_question_link(relay: Relay, turn_id: str, suspended: str, until: str, signature: str) -> LinkedQuestion:
    """Return the question that a signed link leads to, even if it can no longer be answered.

    Raises ``BadRequest`` (``link_invalid``) if this installation did not sign the link, which goes to the audit log,
    and ``TurnNotFound``.
    """
    links, suspended_ms, number = relay.client.links, parse_integer(suspended), parse_integer(until)
    if await links.is_authentic(signature, _QUESTION, turn_id, str(suspended_ms), until=number):
        return LinkedQuestion(
            turn=await relay.client.reader.read_turn(turn_id), suspended_ms=suspended_ms, expires_at=number
        )
    void = BadRequest("this relay did not make this link", param="signature", code="link_invalid")
    try:
        await relay.client.reader.read_turn(turn_id)
    except TurnNotFound:
        raise void from None
    async with relay.client.orders.place_order("answer", by=LINK_HOLDER, turn_id=turn_id, detail="link"):
        raise void

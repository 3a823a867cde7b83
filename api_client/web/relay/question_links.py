"""Links to a question that a turn waits for: who holds one answers that question, once, as long as it waits."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from api_client.contract.errors import BadRequest, TurnNotFound
from api_client.contract.event_kinds import TurnSuspended
from api_client.contract.events import Event
from api_client.contract.interruption import Answerer
from api_client.contract.orders import LINK_HOLDER
from api_client.contract.turn import Turn, TurnState
from api_client.web.relay.file_links import whole
from api_client.web.relay.relay import Relay

#: The kind of link: a signature of one kind of link opens no other.
_QUESTION = "question"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedQuestion:
    """A question that a link is about.

    Attributes:
        turn: as it is now. suspended_ms: when the turn was suspended with it, in ms since the epoch.
        until: when its time is over, in seconds since the epoch.
    """

    turn: Turn
    suspended_ms: int
    until: int

    @property
    def waits(self) -> bool:
        """True while it can be answered."""
        turn = self.turn
        same = turn.state is TurnState.SUSPENDED and round(turn.suspended_at * 1000) == self.suspended_ms
        return same and turn.interruption is not None and time.time() < self.until


async def question_link(relay: Relay, turn_id: str, event: Event) -> str:
    """The path of the link to a question that has just been asked; empty where its owner may not answer it.

    Where a link alone answers nothing it leads to the turn's page, behind the sign-in.
    """
    body = event.body
    asked = body.interruption if isinstance(body, TurnSuspended) else None
    if asked is None or asked.who == Answerer.OPERATOR:
        return ""
    if asked.who != Answerer.OWNER:
        return f"/turns/{turn_id}"
    suspended, until = round(event.at * 1000), math.floor(event.at + asked.wait_seconds)
    signature = await relay.client.links.sign(_QUESTION, turn_id, str(suspended), until=until)
    return f"/answer/{turn_id}?suspended={suspended}&until={until}&signature={signature}"


async def asked_by(relay: Relay, turn_id: str, suspended: str, until: str, signature: str) -> LinkedQuestion:
    """The question that a link is about, also when it waits no more.

    Raises ``BadRequest``: ``link_invalid``: this installation did not make it; recorded as an order about a turn that
    exists. ``TurnNotFound``: the turn is no longer kept.
    """
    links, suspended_ms, number = relay.client.links, whole(suspended), whole(until)
    if await links.made(signature, _QUESTION, turn_id, str(suspended_ms), until=number):
        return LinkedQuestion(turn=await relay.client.reader.get(turn_id), suspended_ms=suspended_ms, until=number)
    void = BadRequest("this relay did not make this link", param="signature", code="link_invalid")
    try:
        await relay.client.reader.get(turn_id)
    except TurnNotFound:
        raise void from None
    async with relay.client.orders.place("answer", by=LINK_HOLDER, turn_id=turn_id, detail="link"):
        raise void

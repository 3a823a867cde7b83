"""From what is asked to the turn that answers it: a new one, or the one that answers the same question already.

The rule is told in docs/open-webui.md, "An answer is never lost".
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

import structlog

from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.turn import Turn, TurnState
from api_client.contract.words.error_codes import sentence
from api_client.web.bodies.ask import Ask
from api_client.web.errors import ApiError
from api_client.web.identity.access import Caller
from api_client.web.relay import Relay

log = structlog.get_logger(__name__)

#: A caller hears within so long that the store is away; the disk may take longer (durability ``power``).
SUBMIT_SECONDS, DISK_SECONDS = 1.8, 2.5
#: When to come again while too many turns wait.
QUEUE_RETRY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Submitted:
    """The turn that answers; ``seen`` is the number of its last event when this caller came, 0 for a new turn."""

    turn_id: str
    seen: int = 0


async def submit(ask: Ask, relay: Relay, caller: Caller) -> Submitted:
    """Store the turn, or find the one to join: of a repeated idempotency key, or of the same question.

    Raises:
        ApiError: 429 ``rate_limited`` or ``queue_full``.
        StoreUnavailable: there was no answer in time; whether the turn is stored is then not known, and a repeat with
            the same idempotency key finds out. Others as ``TurnsClient.submit``.
    """
    seconds = SUBMIT_SECONDS + (DISK_SECONDS if relay.settings.durability == "power" else 0.0)
    try:
        async with asyncio.timeout(seconds):
            await require_room(relay, caller, ask.request.locale)
            if ask.question:
                found = await _submit_or_join(ask, relay)
            else:
                found = Submitted(await relay.client.submit(ask.request, idempotency_key=ask.idempotency_key))
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {seconds:g} s") from error
    # From here on the log lines of this request name its turn.
    structlog.contextvars.bind_contextvars(turn_id=found.turn_id, session_id=ask.request.session_id)
    return found


async def require_room(relay: Relay, caller: Caller, locale: str) -> None:
    """Let the caller hand in a turn, or a file of phases, if the queue and its rate leave room for one more.

    The queue's bound is not exact, because others submit meanwhile; what it keeps away is a store that fills up until
    nobody can work.

    Raises:
        ApiError: 429 ``queue_full`` or ``rate_limited``, with Retry-After in seconds.
        StoreUnavailable: the store does not answer.
    """
    most = relay.settings.max_unfinished
    if most and await relay.client.unfinished() >= most:
        headers = {"retry-after": str(QUEUE_RETRY_SECONDS)}
        raise ApiError(429, sentence("queue_full", locale), code="queue_full", headers=headers)
    if not caller.per_minute:
        return
    if seconds := math.ceil(await relay.client.rates.take(caller.owner, caller.per_minute)):
        message = f"at most {caller.per_minute} turns a minute are allowed; try again in {seconds} s"
        raise ApiError(429, message, code="rate_limited", headers={"retry-after": str(seconds)})


async def delivered(relay: Relay, ask: Ask, turn_id: str) -> None:
    """The answer was sent to its end: the same question is a new one from now on."""
    if not ask.question:
        return
    try:
        await relay.client.repeats.forget(ask.request.owner, ask.question, turn_id)
    except StoreUnavailable as error:
        log.warning("relay.delivery_not_noted", turn_id=turn_id, error=type(error).__name__)


async def _submit_or_join(ask: Ask, relay: Relay) -> Submitted:
    request, repeats = ask.request, relay.client.repeats
    keep = request.deadline_seconds + relay.settings.rejoin_seconds
    turn_id = relay.client.new_id(request.session_id)
    earlier = turn_id
    if ask.first:
        await repeats.replace(request.owner, ask.question, turn_id, keep_seconds=keep)
    else:
        earlier = await repeats.claim(request.owner, ask.question, turn_id, keep_seconds=keep)
    if earlier != turn_id:
        turn = await _joinable(ask, relay, earlier)
        if turn:
            log.info("turn.joined", turn_id=earlier, state=turn.state.value)
            return Submitted(earlier, turn.seq)
        await repeats.replace(request.owner, ask.question, turn_id, keep_seconds=keep)
    if ask.page:
        await relay.readers.moved_on(request.session_id)
    return Submitted(await relay.client.submit(request, turn_id=turn_id))


async def _joinable(ask: Ask, relay: Relay, turn_id: str) -> Turn | None:
    """The earlier turn, if its answer is still owed to this caller."""
    try:
        turn = await relay.client.get(turn_id, owner=ask.request.owner)
    except TurnNotFound:
        return None  # its relay died before it could store it
    if turn.state is TurnState.FINISHED:
        good = turn.outcome is not None and turn.outcome.success
        return turn if good and time.time() - turn.finished_at <= relay.settings.rejoin_seconds else None
    if turn.stop:
        return None
    # Open WebUI can ask one model twice at a time; a client that counts its retries has given the first one up.
    return turn if ask.again or not relay.readers.here(turn_id) else None

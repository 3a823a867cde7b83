"""Submits a chat request as a turn, or joins the turn that already answers the same question."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from starlette.requests import Request

from api_client.contract.admission import Submission
from api_client.contract.error_codes import error_sentence
from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.turn import Turn, TurnState
from api_client.relay_state.submission_limits import LimitRefusal, OwnerLimits
from api_client.web.bodies.body import body_size
from api_client.web.bodies.chat_request import ChatRequest
from api_client.web.errors import ApiError
from api_client.web.identity.access import Caller
from api_client.web.relay.relay import Relay

log = structlog.get_logger(__name__)

#: Seconds until a caller learns that the store is unavailable, and seconds more for disk writes and replicas
#: (``HELIX_DURABILITY``).
SUBMIT_SECONDS, DISK_SECONDS = 1.8, 2.5
QUEUE_RETRY_SECONDS = 30
TASKS_PER_TURN = 5


@dataclass(frozen=True, slots=True)
class SubmittedTurn:
    """The turn that answers a request, either a new or an earlier turn.

    ``last_seen`` is the number of the turn's last event when the request joined the turn.
    """

    turn_id: str
    last_seen: int = 0
    is_new: bool = False


async def submit_or_join(request: Request, chat_request: ChatRequest, relay: Relay, caller: Caller) -> SubmittedTurn:
    """Submit a chat request as a turn, or find the turn that already answers the same request.

    Raises ``ApiError`` (429, as ``require_room``) and the errors of ``Submitter.submit``. After ``StoreUnavailable``,
    the turn may be stored; a repeat with the same idempotency key finds it.
    """
    seconds = SUBMIT_SECONDS + (DISK_SECONDS if relay.settings.durability != "everysec" else 0.0)
    try:
        async with asyncio.timeout(seconds):
            turn_id = relay.client.submitter.create_turn_id()
            turn = Submission(
                turn_id=turn_id, request=chat_request.request, idempotency_key=chat_request.idempotency_key
            )
            try:
                await require_room(relay, caller, chat_request.request.locale, [turn_id], size=body_size(request))
            except ApiError:  # a refusal must not hide a turn that was acknowledged before
                if stored := chat_request.idempotency_key and await relay.client.submitter.find_stored(turn):
                    return SubmittedTurn(stored)
                if joined := await _find_open_turn(chat_request, relay):
                    return joined
                raise
            found = await _find_earlier(chat_request, relay, turn_id) if chat_request.question_hash else None
            if found is None:
                key = chat_request.idempotency_key
                shared = caller.slot_share.apply_to(chat_request.request)
                stored = await relay.client.submitter.submit(shared, turn_id=turn_id, idempotency_key=key)
                found = SubmittedTurn(stored, is_new=stored == turn_id)
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {seconds:g} s") from error
    structlog.contextvars.bind_contextvars(turn_id=found.turn_id, session_id=chat_request.request.session_id)
    return found


async def require_room(
    relay: Relay, caller: Caller, locale: str, turn_ids: Sequence[str] = (), *, count: int = 1, size: int = 0
) -> None:
    """Count new turns towards a caller's limits. Raise ``ApiError`` if a limit is exceeded or the queue is full.

    ``turn_ids`` are noted as unfinished, ``size`` is the request's size in bytes. The error is 429
    ``queue_full``, ``rate_limited``, ``too_many_unfinished`` or ``storage_full``, with Retry-After. Raises also
    ``StoreUnavailable``.
    """
    if await relay.client.workers.is_queue_full():
        headers = {"retry-after": str(QUEUE_RETRY_SECONDS)}
        raise ApiError(429, error_sentence("queue_full", locale), code="queue_full", headers=headers)
    limits = caller.limits
    if limits.per_minute or limits.unfinished or limits.stored_bytes:
        _raise_refusal(
            await relay.client.allowances.admit_turns(caller.owner, limits, turn_ids, count=count, size=size), limits
        )


async def require_rate(relay: Relay, caller: Caller) -> None:
    """Count a background request towards the caller's rate limit. Raises ``ApiError`` (429) if it is exceeded."""
    if caller.limits.per_minute:
        limits = OwnerLimits(per_minute=caller.limits.per_minute)
        _raise_refusal(await relay.client.allowances.admit_turns(caller.owner, limits, cost=1 / TASKS_PER_TURN), limits)


def _raise_refusal(refusal: LimitRefusal | None, limits: OwnerLimits) -> None:
    if refusal is None:
        return
    seconds = math.ceil(refusal.seconds)
    again = f"try again in {seconds} s"
    headers = {"retry-after": str(seconds)}
    match refusal.limit:
        case "rate":
            message = f"at most {limits.per_minute} turns a minute are allowed; {again}"
            raise ApiError(429, message, code="rate_limited", headers=headers)
        case "unfinished":
            message = f"at most {limits.unfinished} of your turns may be unfinished at once"
            raise ApiError(429, message, code="too_many_unfinished", headers=headers)
        case _:
            message = f"your requests may store {limits.stored_bytes} bytes, half of them at once; {again}"
            raise ApiError(429, message, code="storage_full", headers=headers)


async def note_delivery(relay: Relay, owner: str, question: str, turn_id: str) -> None:
    """Record that an answer was sent completely. From then on, the same question starts a new turn."""
    if not question:
        return
    try:
        await relay.client.open_questions.forget_question(owner, question, turn_id)
    except StoreUnavailable as error:
        log.warning("relay.delivery_not_noted", turn_id=turn_id, error=type(error).__name__)


async def _find_earlier(chat_request: ChatRequest, relay: Relay, turn_id: str) -> SubmittedTurn | None:
    request, repeats = chat_request.request, relay.client.open_questions
    keep = request.deadline_seconds + relay.settings.rejoin_seconds
    earlier = turn_id
    if chat_request.is_first_try:
        await repeats.replace_turn(request.owner, chat_request.question_hash, turn_id, keep_seconds=keep)
    else:
        earlier = await repeats.claim_question(request.owner, chat_request.question_hash, turn_id, keep_seconds=keep)
    if earlier != turn_id:
        turn = await _get_joinable(chat_request, relay, earlier)
        if turn:
            log.info("turn.joined", turn_id=earlier, state=turn.state.value)
            return SubmittedTurn(earlier, turn.seq)
        await repeats.replace_turn(request.owner, chat_request.question_hash, turn_id, keep_seconds=keep)
    if chat_request.has_page:
        await relay.readers.cancel_superseded(turn_id, request)
    return None


async def _find_open_turn(chat_request: ChatRequest, relay: Relay) -> SubmittedTurn | None:
    owner, question = chat_request.request.owner, chat_request.question_hash
    if not question or chat_request.is_first_try:
        return None
    earlier = await relay.client.open_questions.find_turn(owner, question)
    turn = await _get_joinable(chat_request, relay, earlier) if earlier else None
    return SubmittedTurn(earlier, turn.seq) if turn else None


async def _get_joinable(chat_request: ChatRequest, relay: Relay, turn_id: str) -> Turn | None:
    try:
        turn = await relay.client.reader.read_turn(turn_id, owner=chat_request.request.owner)
    except TurnNotFound:
        return None  # its relay died before storing it
    if turn.state is TurnState.FINISHED:
        return turn if turn.success and time.time() - turn.finished_at <= relay.settings.rejoin_seconds else None
    if turn.stop:
        return None
    # Open WebUI may ask one model twice at a time; clients that count their retries have abandoned the first request.
    return turn if chat_request.is_retry or not relay.readers.has_reader(turn_id) else None

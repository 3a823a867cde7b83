"""Follows a turn for one request until the client disconnects or the relay stops. The turn itself continues."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.event_kinds import LogReset, TurnDecided, TurnSuspended
from api_client.contract.events import Event, describe_end
from api_client.contract.turn import Turn
from api_client.web.errors import ApiError, describe_fault, internal_error, turn_continues_error
from api_client.web.intake.turn_submission import note_delivery
from api_client.web.relay.relay import Relay, RelayStopping
from api_client.web.streaming.page_additions import make_additions
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import Reply, make_failure
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.wire import JSONResponse

log = structlog.get_logger(__name__)
_NO_MORE_EVENTS = object()


class SuspendedTooLong(HelixError):
    """Raised when a turn waits for a person longer than the caller will wait. The turn continues."""

    code = "turn_suspended"


async def follow_turn(
    relay: Relay, turn_id: str, owner: str | None, *, patience: float = math.inf, **start: Any
) -> AsyncGenerator[Event | None]:
    """Yield the events of a turn, and None when a ping is due. Close the iterator with ``aclosing``.

    ``patience`` is how many seconds the caller waits while the turn is suspended. Raises ``RelayStopping``,
    ``SuspendedTooLong`` and the errors of ``TurnReader.follow_turn``, whose arguments are ``start``.
    """
    found = relay.client.reader.follow_turn(turn_id, owner=owner, ping_seconds=relay.settings.ping_seconds, **start)
    next_step, suspended_at = relay.stopping.await_unless_stopped, 0.0
    event: Any
    async with aclosing(found) as events:
        while (event := await next_step(anext(events, _NO_MORE_EVENTS))) is not _NO_MORE_EVENTS:
            if event is not None and isinstance(event.body, TurnSuspended | TurnDecided | LogReset):
                suspended_at = time.monotonic() if isinstance(event.body, TurnSuspended) else 0.0
            yield event
            if suspended_at and event is None and time.monotonic() - suspended_at >= patience:
                raise SuspendedTooLong("the turn waits for a person")


def stream_error(error: Exception, turn_id: str, locale: str) -> ApiError:
    """Log why a stream broke off, and return the error that ends the stream."""
    if isinstance(error, SuspendedTooLong):
        return turn_continues_error(error.code, turn_id, locale)
    if isinstance(error, HelixError):
        log.warning("relay.stream_lost", turn_id=turn_id, error=type(error).__name__)
        return turn_continues_error("stream_lost", turn_id, locale)
    log.error("relay.stream_crashed", turn_id=turn_id, **describe_fault(error))
    return internal_error(locale)


async def read_usage(relay: Relay, turn_id: str, owner: str | None, *, new: bool = False) -> TurnUsage:
    """Wait for the end of a turn and return its token usage. ``new`` says that the turn has just been submitted."""
    used, patience = TurnUsage(), relay.settings.suspended_seconds
    async with aclosing(follow_turn(relay, turn_id, owner, patience=patience, new=new)) as events:
        async for event in events:
            if event is not None:
                used.add_event(event)
    return used


async def _read_result(relay: Relay, reply: Reply, *, new: bool) -> tuple[Turn, TurnUsage]:
    used = await read_usage(relay, reply.turn_id, reply.owner, new=new)
    return await relay.client.reader.read_turn(reply.turn_id, owner=reply.owner), used


async def await_result(request: Request, relay: Relay, reply: Reply, *, new: bool) -> tuple[Turn, TurnUsage]:
    """Wait for the end of a turn, and return its record and token usage.

    Raises ``ApiError`` (``stream_lost``, ``turn_suspended``) and ``ClientDisconnect``.
    """
    try:
        with relay.readers.track_reader(reply.turn_id):
            result = asyncio.create_task(_read_result(relay, reply, new=new))
            # A caller who has left no longer asks for its error.
            result.add_done_callback(lambda task: task.cancelled() or task.exception())
            gone = asyncio.create_task(_wait_for_disconnect(request))
            try:
                await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not result.done():
                    raise ClientDisconnect
                return result.result()
            finally:
                gone.cancel()
                result.cancel()
    except ClientDisconnect:
        if reply.has_page:
            relay.readers.reader_left(reply.turn_id, reply.owner)
        raise
    except (SuspendedTooLong, StoreUnavailable, RelayStopping) as left:
        code = left.code if isinstance(left, SuspendedTooLong) else "stream_lost"
        raise turn_continues_error(code, reply.turn_id, reply.locale) from left


async def answer_whole(
    request: Request, relay: Relay, reply: Reply, body: Callable[[Turn, TurnUsage], Payload | None], *, new: bool
) -> Response:
    """Wait for the end of a turn, and return its answer as one response.

    ``new`` says that the turn has just been submitted. Raises the errors of ``await_result``.
    """
    turn, used = await await_result(request, relay, reply, new=new)
    headers = {"x-turn-id": reply.turn_id}
    done = BackgroundTask(note_delivery, relay, reply.owner, reply.question_hash, reply.turn_id)
    if turn.success and reply.has_page:
        shown = reply.format_answer(turn.response, turn.markers) + await make_additions(relay, reply)
        turn = replace(turn, response=shown, markers=())
    if (made := body(turn, used)) is not None:
        return JSONResponse(made, headers=headers, background=done)
    error = make_failure(describe_end(turn), reply)
    return JSONResponse(error.to_body(), error.status, headers | error.headers, background=done)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

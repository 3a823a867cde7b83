"""Waiting for a turn on behalf of a caller, as long as the caller and this relay are there. The turn minds neither."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import structlog
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from api_client.contract.events import Event, LogReset, TurnDecided, TurnParked
from api_client.contract.failpoints import reach
from api_client.contract.issues import HelixError, StoreUnavailable
from api_client.contract.turn import Turn
from api_client.web.bodies.ask import Ask
from api_client.web.bodies.models import StreamMode
from api_client.web.errors import ApiError, goes_on, internal_error, where
from api_client.web.intake import Submitted, delivered
from api_client.web.listing import DONE, JSON, PING, SSE_HEADERS, data_frame
from api_client.web.openwebui.answers import asking, attached, lost_text, noted, unused_noted
from api_client.web.openwebui.background import answer_task
from api_client.web.relay import Relay, linked_files, question_link
from api_client.web.streaming.reply import PageReply, Payload, Reply, TurnUsage, opening, page_of, pieces, turn_error
from api_client.workers.reason import NOBODY_CAN

log = structlog.get_logger(__name__)
_END = object()
#: Waits that nobody needs any more, until they have really ended.
_ending: set[asyncio.Task[None]] = set()


class WaitsForPerson(HelixError):
    """The turn waits for a person longer than its caller does; it goes on without its caller."""

    code = "turn_parked"


class RelayStopping(HelixError):
    """The relay is asked to stop while somebody waits for a turn; the turn goes on."""

    code = "stream_lost"


async def follow(
    relay: Relay, turn_id: str, owner: str | None, *, patience: float = math.inf, **start: Any
) -> AsyncGenerator[Event | None]:
    """The turn's events as ``TurnReader.follow`` brings them, from ``start``. Close it (``aclosing``).

    ``patience``: seconds for which a caller that wants the answer, and not the log, waits for a person. Raises
    ``RelayStopping``: the relay stops. ``WaitsForPerson``: the turn was parked for longer while this caller waited.
    Otherwise as ``TurnReader.follow``.
    """
    events = relay.client.reader.follow(turn_id, owner=owner, ping_seconds=relay.settings.ping_seconds, **start)
    stopping = asyncio.create_task(relay.stopping.wait())
    step: asyncio.Future[Any] = asyncio.ensure_future(anext(events, _END))
    parked_at = 0.0
    try:
        while (event := await _first(step, stopping)) is not _END:
            if event is not None and isinstance(event.body, TurnParked | TurnDecided | LogReset):
                parked_at = time.monotonic() if isinstance(event.body, TurnParked) else 0.0
            yield event
            if parked_at and event is None and time.monotonic() - parked_at >= patience:
                raise WaitsForPerson("the turn waits for a person")
            step = asyncio.ensure_future(anext(events, _END))
    finally:
        stopping.cancel()
        _end(step, events)


def broken(error: Exception, turn_id: str, locale: str) -> ApiError:
    """The last words of a stream that cannot go on; the log gets the rest."""
    if isinstance(error, WaitsForPerson):
        return goes_on(error.code, turn_id, locale)
    if isinstance(error, HelixError):
        log.warning("relay.stream_lost", turn_id=turn_id, error=type(error).__name__)
        return goes_on("stream_lost", turn_id, locale)
    log.error("relay.stream_crashed", turn_id=turn_id, **where(error))
    return internal_error(locale)


async def spent(relay: Relay, turn_id: str, owner: str | None) -> TurnUsage:
    """Return what a turn used, from its log; ends with the turn."""
    used = TurnUsage()
    async with aclosing(follow(relay, turn_id, owner, patience=relay.settings.parked_seconds)) as events:
        async for event in events:
            if event is not None:
                used.take(event)
    return used


async def _result(relay: Relay, turn_id: str, owner: str | None) -> tuple[Turn, TurnUsage]:
    used = await spent(relay, turn_id, owner)
    return await relay.client.reader.get(turn_id, owner=owner), used


async def result(request: Request, relay: Relay, turn_id: str, owner: str, locale: str) -> tuple[Turn, TurnUsage]:
    """The turn after its end, and what it used.

    Raises ``ApiError``: ``stream_lost``, ``turn_parked``. ``ClientDisconnect``: the caller left.
    """
    try:
        with relay.readers.reading(turn_id):
            task = asyncio.create_task(_result(relay, turn_id, owner))
            stopping, gone = asyncio.create_task(relay.stopping.wait()), asyncio.create_task(_gone(request))
            try:
                await _first(task, stopping, gone)
                return task.result()
            finally:
                stopping.cancel()
                gone.cancel()
                _end(task)
    except (WaitsForPerson, StoreUnavailable, RelayStopping) as left:
        raise goes_on(left.code if isinstance(left, WaitsForPerson) else "stream_lost", turn_id, locale) from left


async def in_one_piece(
    request: Request, relay: Relay, reply: Reply, body: Callable[[Turn, TurnUsage], Payload | None]
) -> Response:
    """The answer after the turn's end; ``body`` makes it, None for a turn without one. Raises as ``result``."""
    turn, used = await result(request, relay, reply.turn_id, reply.owner, reply.locale)
    headers = {"x-turn-id": reply.turn_id}
    done = BackgroundTask(delivered, relay, reply.owner, reply.question, reply.turn_id)
    if (made := body(turn, used)) is not None:
        return JSON(made, headers=headers, background=done)
    error = turn_error(str(turn.outcome or "error"), turn.error, reply.locale)
    return JSON(error.body(), error.status, headers | error.headers, background=done)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(task: asyncio.Future[Any], stopping: asyncio.Task[Any], *gone: asyncio.Task[None]) -> Any:
    """The result of ``task``. Raises ``ClientDisconnect``, ``RelayStopping``: something else happened first."""
    await asyncio.wait({task, stopping, *gone}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    if stopping.done():
        raise RelayStopping("the relay is stopping")
    raise ClientDisconnect


def _end(task: asyncio.Future[Any], events: AsyncGenerator[Any] | None = None) -> None:
    """Give up a wait without waiting for its end here: this may run in a task that is being cancelled itself."""
    ending = asyncio.create_task(_ended(task, events))
    _ending.add(ending)
    ending.add_done_callback(_ending.discard)


async def _ended(task: asyncio.Future[Any], events: AsyncGenerator[Any] | None) -> None:
    """On Python 3.11 ``asyncio.wait_for``, which the store's client uses, may swallow a cancellation: ask again."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
    if not task.cancelled():
        task.exception()  # whatever it was, nobody waits for it
    if events is not None:
        await events.aclose()


# The stream of a chat: chunks of chat completions, and between them what only Open WebUI reads.


def page_stream(relay: Relay, reply: Reply, mode: StreamMode, turn: Submitted) -> Response:
    """The reply as a stream of chunks."""
    headers = {"x-turn-id": turn.turn_id} | SSE_HEADERS
    return StreamingResponse(stream(relay, page_of(reply, mode), turn), media_type="text/event-stream", headers=headers)


def reply_to(relay: Relay, ask: Ask, turn_id: str) -> Reply:
    """Return what all parts of the reply to ``ask`` have in common: without its text, which nobody needs any more."""
    return Reply(
        turn_id=turn_id,
        model=ask.request.model,
        created=int(time.time()),
        locale=ask.request.locale,
        status=ask.open_webui,
        pages=relay.settings.public_url.rstrip("/"),
        checked=bool(ask.request.validators),
        include_usage=ask.include_usage,
        owner=ask.request.owner,
        session_id=ask.request.session_id,
        question=ask.question,
        page=ask.page,
    )


def task_answer(ask: Ask) -> Response:
    """The answer to a background request; no turn is made."""
    request, answer = ask.request, answer_task(ask.task, ask.request.messages)
    name = f"task-{secrets.token_hex(12)}"
    reply = Reply(turn_id=name, model=request.model, created=int(time.time()), locale=request.locale)
    log.info("relay.task_answered", task=ask.task[:40])
    if not ask.stream:
        return JSON(reply.completion(answer))
    content: list[Payload] = [reply.chunk({"content": piece}) for piece in pieces(answer)]
    frames = [data_frame(payload) for payload in [*opening(reply), *content, reply.chunk({}, "stop")]]
    return Response(b"".join([*frames, DONE]), media_type="text/event-stream", headers=SSE_HEADERS)


async def stream(relay: Relay, page: PageReply, turn: Submitted) -> AsyncIterator[bytes]:
    """The reply as Server-Sent Events. It never ends quietly: the last words are the answer's end or an error.

    Of what happened before this reader came (``turn.seen``), it gets the result.
    """
    reply, seen, whole = page.reply, turn.seen, False
    try:
        with relay.readers.reading(reply.turn_id):
            for payload in opening(reply):
                yield data_frame(payload)
            patience = relay.settings.parked_seconds
            try:
                async with aclosing(
                    follow(relay, reply.turn_id, reply.owner, patience=patience, new=turn.new)
                ) as events:
                    async for event in events:
                        if event is not None and isinstance(event.body, LogReset):
                            seen = -1  # that too is news to this reader, and so is all that follows
                        for frame in await _frames(relay, page, event, seen) if event else await _waiting(relay, page):
                            yield frame
                        if event is not None and event.final:
                            reach("result.sent")
                            yield DONE
                            if reply.question:
                                await delivered(relay, reply.owner, reply.question, reply.turn_id)
                            break
                    else:
                        raise EOFError("the turn's events ended without its end")
            except Exception as error:
                for frame in _broken(error, page):
                    yield frame
            whole = True
    finally:
        if reply.page and not whole:
            relay.readers.left(reply.turn_id, reply.owner)


async def _attached(relay: Relay, page: PageReply) -> str:
    """What a chat shows below the answer: a note where that is set, links where its reader can follow them."""
    added, reply = list[str](), page.reply
    try:
        if (note := relay.settings.chat_note == "yes") or page.asked:
            turn = await relay.client.reader.get(reply.turn_id, owner=reply.owner)
            added.append((noted if note else unused_noted)(turn, reply.locale))
        if reply.pages:
            added.append(attached(await linked_files(relay, reply.turn_id, reply.owner), reply.pages))
    except HelixError as error:  # the answer matters more
        log.warning("relay.nothing_attached", turn_id=reply.turn_id, error=type(error).__name__)
    return "".join(added)


async def _question(relay: Relay, page: PageReply, event: Event, body: TurnParked) -> list[Payload]:
    """Return what asks about a tool call that waits, with a link, for a chat whose reader can follow it."""
    reply = page.reply
    if not (reply.page and reply.pages and body.asked):
        return []
    try:
        link = await question_link(relay, reply.turn_id, event)
    except HelixError as error:
        log.warning("relay.question_not_linked", turn_id=reply.turn_id, error=type(error).__name__)
        return []
    return page.ask(asking(body.asked, reply.pages + link, reply.locale)) if link else []


def _broken(error: Exception, page: PageReply) -> list[bytes]:
    """The last words of a stream that cannot go on."""
    reply, line = page.reply, list[Payload]()
    lost = broken(error, reply.turn_id, reply.locale)
    if page.progress:
        lost.message = lost_text(lost.code, reply.locale, reply.turn_id)
        line = page.line(page.progress.lost() if lost.code == "stream_lost" else page.progress.ended())
    return [*map(data_frame, [*line, lost.body()]), DONE]


async def _waiting(relay: Relay, page: PageReply) -> list[bytes]:
    """Return frames for a while without an event: a ping, and on a page how long it takes, or who is before it."""
    if not page.progress:
        return [PING]
    before, others, why = 0, 0, ""
    if page.progress.queued:
        with suppress(StoreUnavailable):  # the next one may tell
            place = await relay.client.sessions.place(page.reply.turn_id, page.reply.session_id)
            before, others = place.before, place.waiting
            turn = await relay.client.reader.get(page.reply.turn_id)
            wait = (await relay.client.workers.waits([turn])).get(turn.turn_id)
            if wait and wait.reason in NOBODY_CAN:
                why = wait.words(page.reply.locale, public=True)
    status = page.progress.waiting(time.time(), before=before, others=others, why=why)
    return [PING, *map(data_frame, page.line(status))]


async def _frames(relay: Relay, page: PageReply, event: Event, seen: int) -> list[bytes]:
    """Return the frames that an event brings; ``seen`` is the number of the last one before this reader came."""
    page.asked = page.asked or (isinstance(event.body, TurnParked) and event.body.asked is not None)
    if event.seq > seen or event.final:
        if event.final and page.reply.page:
            page.attached = await _attached(relay, page)
        payloads = page.render(event)
    else:
        page.skip(event)
        payloads = page.catch_up() if event.seq == seen else []
    if isinstance(event.body, TurnParked) and event.seq >= seen:
        payloads += await _question(relay, page, event, event.body)
    return [*map(data_frame, payloads)]

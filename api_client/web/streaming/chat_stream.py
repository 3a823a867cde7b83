"""Stream a chat completion, with additional events for Open WebUI."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import structlog
from starlette.responses import Response, StreamingResponse

from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.event_kinds import LogReset, TurnSuspended
from api_client.contract.events import Event
from api_client.contract.failpoints import reach
from api_client.interruptions.registry import question_of
from api_client.web.bodies.ask import Ask
from api_client.web.bodies.models import StreamMode
from api_client.web.intake import SubmittedTurn, delivered
from api_client.web.openwebui.attached import asking, attached, noted, recap_noted
from api_client.web.openwebui.background import answer_task
from api_client.web.openwebui.failure import lost_text
from api_client.web.relay.file_links import linked_files
from api_client.web.relay.question_links import question_link
from api_client.web.relay.relay import Relay
from api_client.web.streaming.following import broken, follow
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import Reply, opening, pieces
from api_client.web.streaming.reply_forms import PageReply, page_of
from api_client.web.wire import DONE, JSON, PING, SSE_HEADERS, data_frame
from api_client.workers.reason import NOBODY_CAN

log = structlog.get_logger(__name__)


def page_stream(relay: Relay, reply: Reply, mode: StreamMode, turn: SubmittedTurn) -> Response:
    """Return the streaming response that sends a reply to the client in chunks."""
    headers = {"x-turn-id": turn.turn_id} | SSE_HEADERS
    return StreamingResponse(stream(relay, page_of(reply, mode), turn), media_type="text/event-stream", headers=headers)


def reply_to(relay: Relay, ask: Ask, turn_id: str) -> Reply:
    """Create the reply for a chat request, without the text of the request, which would use memory."""
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
    """Return the response to a background request, such as a chat title, which needs no turn."""
    request, answer = ask.request, answer_task(ask.task, ask.request.messages)
    name = f"task-{secrets.token_hex(12)}"
    reply = Reply(turn_id=name, model=request.model, created=int(time.time()), locale=request.locale)
    log.info("relay.task_answered", task=ask.task[:40])
    if not ask.stream:
        return JSON(reply.completion(answer))
    content: list[Payload] = [reply.chunk({"content": piece}) for piece in pieces(answer)]
    frames = [data_frame(payload) for payload in [*opening(reply), *content, reply.chunk({}, "stop")]]
    return Response(b"".join([*frames, DONE]), media_type="text/event-stream", headers=SSE_HEADERS)


async def stream(relay: Relay, page: PageReply, turn: SubmittedTurn) -> AsyncIterator[bytes]:
    """Yield a reply as server-sent events, of which the last one ends the answer or reports an error.

    Events up to ``turn.seen`` are not streamed one by one: the reader gets their combined result.
    """
    reply, seen, whole = page.reply, turn.seen, False
    try:
        with relay.readers.reading(reply.turn_id):
            for payload in opening(reply):
                yield data_frame(payload)
            patience = relay.settings.suspended_seconds
            try:
                async with aclosing(
                    follow(relay, reply.turn_id, reply.owner, patience=patience, new=turn.new)
                ) as events:
                    async for event in events:
                        if event is not None and isinstance(event.body, LogReset):
                            seen = -1  # the reset and all later events are new to this reader
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
    added, reply = list[str](), page.reply
    try:
        if (note := relay.settings.chat_note == "yes") or page.asked:
            turn = await relay.client.reader.get(reply.turn_id, owner=reply.owner)
            added.append((noted if note else recap_noted)(turn, reply.locale))
        if reply.pages:
            added.append(attached(await linked_files(relay, reply.turn_id, reply.owner), reply.pages))
    except HelixError as error:  # the answer is worth sending without additions
        log.warning("relay.nothing_attached", turn_id=reply.turn_id, error=type(error).__name__)
    return "".join(added)


async def _question(relay: Relay, page: PageReply, event: Event, body: TurnSuspended) -> list[Payload]:
    reply = page.reply
    question = question_of(body.interruption, reply.locale) if body.interruption else None
    if not (reply.page and reply.pages and question and question.chat):
        return []
    try:
        link = await question_link(relay, reply.turn_id, event)
    except HelixError as error:
        log.warning("relay.question_not_linked", turn_id=reply.turn_id, error=type(error).__name__)
        return []
    return page.ask(asking(question, reply.pages + link)) if link else []


def _broken(error: Exception, page: PageReply) -> list[bytes]:
    reply, line = page.reply, list[Payload]()
    lost = broken(error, reply.turn_id, reply.locale)
    if page.progress:
        lost.message = lost_text(lost.code, reply.locale, reply.turn_id)
        line = page.line(page.progress.lost() if lost.code == "stream_lost" else page.progress.ended())
    return [*map(data_frame, [*line, lost.body()]), DONE]


async def _waiting(relay: Relay, page: PageReply) -> list[bytes]:
    """Return what to send after a period without events: a ping and, for Open WebUI, a new status line."""
    if not page.progress:
        return [PING]
    before, others, why = 0, 0, ""
    if page.progress.queued:
        with suppress(StoreUnavailable):
            place = await relay.client.sessions.place(page.reply.turn_id, page.reply.session_id)
            before, others = place.before, place.waiting
            turn = await relay.client.reader.get(page.reply.turn_id)
            wait = (await relay.client.workers.waits([turn])).get(turn.turn_id)
            if wait and wait.reason in NOBODY_CAN:
                why = wait.words(page.reply.locale, public=True)
    status = page.progress.waiting(time.time(), before=before, others=others, why=why)
    return [PING, *map(data_frame, page.line(status))]


async def _frames(relay: Relay, page: PageReply, event: Event, seen: int) -> list[bytes]:
    page.asked = page.asked or isinstance(event.body, TurnSuspended)
    if event.seq > seen or event.final:
        if event.final and page.reply.page:
            page.attached = await _attached(relay, page)
        payloads = page.render(event)
    else:
        page.skip(event)
        payloads = page.catch_up() if event.seq == seen else []
    if isinstance(event.body, TurnSuspended) and event.seq >= seen:
        payloads += await _question(relay, page, event, event.body)
    return [*map(data_frame, payloads)]

"""Streams a chat completion, with additional events for Open WebUI."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import structlog
from starlette.responses import Response, StreamingResponse

from api_client.contract.answer_format import AnswerFormat
from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.event_kinds import LogReset, TurnSuspended
from api_client.contract.events import Event
from api_client.contract.failpoints import pass_failpoint
from api_client.interruptions.registry import show_question
from api_client.web.bodies.chat_request import ChatRequest
from api_client.web.bodies.models import StreamMode
from api_client.web.intake.turn_submission import SubmittedTurn, note_delivery
from api_client.web.openwebui.answer_additions import format_question
from api_client.web.openwebui.background_tasks import answer_task
from api_client.web.openwebui.failure_text import format_lost_stream
from api_client.web.relay.question_links import sign_question_link
from api_client.web.relay.relay import Relay
from api_client.web.streaming.page_additions import make_additions
from api_client.web.streaming.payload import Payload
from api_client.web.streaming.reply import Reply, make_opening, split_text
from api_client.web.streaming.reply_forms import PageReply, make_page_reply
from api_client.web.streaming.turn_following import follow_turn, stream_error
from api_client.web.wire import DONE, PING, SSE_HEADERS, JSONResponse, data_frame
from api_client.workers.reason import NOBODY_CAN

log = structlog.get_logger(__name__)


def stream_page(relay: Relay, reply: Reply, mode: StreamMode, turn: SubmittedTurn) -> Response:
    """Return the HTTP response that streams a turn's reply to the client."""
    headers = {"x-turn-id": turn.turn_id} | SSE_HEADERS
    return StreamingResponse(
        stream_reply(relay, make_page_reply(reply, mode), turn), media_type="text/event-stream", headers=headers
    )


def make_reply(relay: Relay, chat_request: ChatRequest, turn_id: str) -> Reply:
    """Create the reply for a chat request without keeping the request's texts in memory."""
    return Reply(
        turn_id=turn_id,
        model=chat_request.request.model,
        created=int(time.time()),
        locale=chat_request.request.locale,
        from_open_webui=chat_request.from_open_webui,
        pages_url=relay.settings.public_url.rstrip("/"),
        has_validators=bool(chat_request.request.validators),
        include_usage=chat_request.include_usage,
        owner=chat_request.request.owner,
        session_id=chat_request.request.session_id,
        question_hash=chat_request.question_hash,
        has_page=chat_request.has_page,
        is_json=AnswerFormat.from_request(chat_request.request) is not None,
    )


def answer_background_task(chat_request: ChatRequest) -> Response:
    """Return the response to a background request that needs no turn, such as a request for a chat title."""
    request, answer = chat_request.request, answer_task(chat_request.background_kind, chat_request.request.messages)
    name = f"task-{secrets.token_hex(12)}"
    reply = Reply(turn_id=name, model=request.model, created=int(time.time()), locale=request.locale)
    log.info("relay.task_answered", task=chat_request.background_kind[:40])
    if not chat_request.wants_stream:
        return JSONResponse(reply.make_completion(answer))
    content: list[Payload] = [reply.make_chunk({"content": piece}) for piece in split_text(answer)]
    frames = [data_frame(payload) for payload in [make_opening(reply), *content, reply.make_chunk({}, "stop")]]
    return Response(b"".join([*frames, DONE]), media_type="text/event-stream", headers=SSE_HEADERS)


async def stream_reply(relay: Relay, page: PageReply, turn: SubmittedTurn) -> AsyncIterator[bytes]:
    """Yield a reply as server-sent events. The last event ends the answer or reports an error.

    Events up to ``turn.last_seen`` are not streamed one by one: the reader gets their combined result.
    """
    reply, seen, whole = page.reply, turn.last_seen, False
    try:
        with relay.readers.track_reader(reply.turn_id):
            yield data_frame(make_opening(reply))
            patience = relay.settings.suspended_seconds
            try:
                async with aclosing(
                    follow_turn(relay, reply.turn_id, reply.owner, patience=patience, new=turn.is_new)
                ) as events:
                    async for event in events:
                        if event is None:
                            yield await _make_waiting_frames(relay, page)
                            continue
                        if isinstance(event.body, LogReset):
                            seen = -1  # the reset and all later events are new to this reader
                        if frames := await _make_frames(relay, page, event, seen):
                            yield frames
                        if event.final:
                            pass_failpoint("result.sent")
                            yield DONE
                            if reply.question_hash:
                                await note_delivery(relay, reply.owner, reply.question_hash, reply.turn_id)
                            break
                    else:
                        raise EOFError("the turn's events ended without its end")
            except Exception as error:
                yield _make_error_frames(error, page)
            whole = True
    finally:
        if reply.has_page and not whole:
            relay.readers.reader_left(reply.turn_id, reply.owner)


async def _send_question(relay: Relay, page: PageReply, event: Event, body: TurnSuspended) -> list[Payload]:
    reply = page.reply
    question = show_question(body.interruption, reply.locale) if body.interruption else None
    if not (reply.has_page and reply.pages_url and question and question.chat):
        return []
    try:
        link = await sign_question_link(relay, reply.turn_id, event)
    except HelixError as error:
        log.warning("relay.question_not_linked", turn_id=reply.turn_id, error=type(error).__name__)
        return []
    return page.append_question(format_question(question, reply.pages_url + link)) if link else []


def _make_error_frames(error: Exception, page: PageReply) -> bytes:
    reply, line = page.reply, list[Payload]()
    lost = stream_error(error, reply.turn_id, reply.locale)
    if page.status_line:
        lost.message = format_lost_stream(lost.code, reply.locale, reply.turn_id)
        line = page.make_status(
            page.status_line.show_lost() if lost.code == "stream_lost" else page.status_line.finish_line()
        )
    return b"".join(map(data_frame, [*line, lost.to_body()])) + DONE


async def _make_waiting_frames(relay: Relay, page: PageReply) -> bytes:
    """Return what to send after a period without events: a ping and, for Open WebUI, a new status line."""
    if not page.status_line:
        return PING
    before, others, why = 0, 0, ""
    if page.status_line.is_queued:
        with suppress(StoreUnavailable):
            place = await relay.client.sessions.find_position(page.reply.turn_id, page.reply.session_id)
            before, others = place.before, place.waiting
            turn = await relay.client.reader.read_turn(page.reply.turn_id)
            wait = (await relay.client.workers.explain_waits([turn])).get(turn.turn_id)
            if wait and wait.reason in NOBODY_CAN:
                why = wait.words(page.reply.locale, public=True)
    status = page.status_line.show_waiting(time.time(), before=before, others=others, why=why)
    return PING + b"".join(map(data_frame, page.make_status(status)))


async def _make_frames(relay: Relay, page: PageReply, event: Event, seen: int) -> bytes:
    page.was_suspended = page.was_suspended or isinstance(event.body, TurnSuspended)
    if event.seq > seen or event.final:
        if event.final:
            page.additions = await make_additions(relay, page.reply, was_suspended=page.was_suspended)
        payloads = page.render(event)
    else:
        page.skip_event(event)
        payloads = page.catch_up() if event.seq == seen else []
    if isinstance(event.body, TurnSuspended) and event.seq >= seen:
        payloads += await _send_question(relay, page, event, event.body)
    return b"".join(map(data_frame, payloads))

"""``/v1/turns`` and ``/v1/phases``: turns themselves, for those who want to submit now and read later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from urllib.parse import quote

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.client import Change, act
from api_client.contract.events import Event, read_event_id, reset
from api_client.contract.issues import StoreUnavailable
from api_client.contract.phases import Phase, PhaseError, directory_problem, input_problems, read_phases
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.index import line_of
from api_client.store.audit import by_key
from api_client.tracing import traceparent_of
from api_client.turns.submitter import folder_of, granted, requests_of
from api_client.turns.turn_files import kept_files, open_file
from api_client.web.bodies.ask import read_idempotency_key
from api_client.web.bodies.body import has_body, off_the_loop, read_object, size_of
from api_client.web.bodies.models import PhasesBody, ReplayBody, TurnBody, operation, read, read_escalation
from api_client.web.errors import ApiError, bad_request, shown
from api_client.web.identity import Asker, Named, Reach, needs_key, needs_token, require_local
from api_client.web.intake import replay, require_room, submit
from api_client.web.listing import JSON, PING, SSE_HEADERS, SSE_RESPONSES, event_frame, place_of, search_of, turn_object
from api_client.web.relay import Relay, RelayOf, linked_files, require_link
from api_client.web.routes.completions import ask_of
from api_client.web.streaming.following import broken, follow

router = APIRouter(prefix="/v1/turns")


@router.post("", response_model=None, status_code=202, openapi_extra=operation(TurnBody))
async def submit_turn(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Store a turn and return at once."""
    ask = await ask_of(request, relay, caller, "turns")
    turn_id = (
        await submit(request, replace(ask, question=""), relay, caller)
    ).turn_id  # repeats are found by their key alone
    url = f"/v1/turns/{turn_id}"
    body = {
        "object": "turn",
        "turn_id": turn_id,
        "session_id": ask.request.session_id,
        "url": url,
        "events_url": f"{url}/events",
    }
    return JSON(body, 202, {"x-turn-id": turn_id, "location": url})


@router.get("", response_model=None)
async def list_turns(
    request: Request, relay: RelayOf, owner: Reach, limit: int = Query(50, ge=1, le=200), cursor: str = ""
) -> Response:
    """Turns that match, without their answers: unfinished ones first, then finished ones, each newest first.

    An operator's key sees every owner's turns, any other its own. A page ends before it is full when the search took
    too long; ``next`` is the cursor of the page behind it, null on the last page.
    """
    search = search_of(request.query_params, owner)
    page = await relay.client.lists.page(search, after=place_of(cursor), count=limit)
    waits = await relay.client.workers.waits(page.turns)
    data = [
        {"object": "turn", **line_of(turn, waits.get(turn.turn_id), public=owner is not None)} for turn in page.turns
    ]
    return JSON({"object": "list", "data": data, "next": str(page.next) if page.next else None})


@router.get("/{turn_id}", response_model=None)
async def show_turn(turn_id: Named, relay: RelayOf, owner: Reach) -> Response:
    """The turn's record."""
    turn = await relay.client.reader.get(turn_id, owner=owner)
    wait = (await relay.client.workers.waits([turn])).get(turn_id)
    return JSON({**turn_object(turn), "waits": wait.to_dict(public=owner is not None) if wait else None})


@router.get("/{turn_id}/attempts", response_model=None)
async def list_attempts(turn_id: Named, relay: RelayOf, owner: Reach) -> Response:
    """The turn's attempts, oldest first."""
    attempts = await relay.client.reader.attempts(turn_id, owner=owner)
    return JSON({"object": "list", "data": [attempt.to_dict() for attempt in attempts]})


@router.post("/{turn_id}/cancel", response_model=None)
@router.delete("/{turn_id}", response_model=None)
async def cancel_turn(turn_id: Named, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Call the turn off. Repeating it, or cancelling a finished turn, changes nothing."""
    await act(relay.client, "cancel", turn_id, by=by_key(caller.owner), owner=owner)
    return JSON(turn_object(await relay.client.reader.get(turn_id, owner=owner)))


@router.post("/{turn_id}/replay", response_model=None, status_code=202, openapi_extra=operation(ReplayBody))
async def replay_turn(turn_id: Named, request: Request, relay: RelayOf, owner: Reach, caller: Asker) -> Response:
    """Submit a finished turn again, as a new turn: as it was, by another ``model``, or with another ``message``.

    The same replay asked for twice makes one new turn.
    """
    asked = read(ReplayBody, await read_object(request, relay.settings.max_body_bytes) if has_body(request) else {})
    change = Change(model=asked.model or "", prompt=asked.message or "")
    done = await replay(relay, turn_id, change, caller=caller, reach=owner, by=by_key(caller.owner))
    url = f"/v1/turns/{done.new_turn_id}"
    body = {"object": "turn", "turn_id": done.new_turn_id, "replay_of": turn_id, "url": url}
    return JSON({**body, "events_url": f"{url}/events"}, 202, {"x-turn-id": done.new_turn_id, "location": url})


@router.get("/{turn_id}/events", response_model=None, responses=SSE_RESPONSES)
async def stream_events(turn_id: Named, request: Request, relay: RelayOf, owner: Reach) -> Response:
    """The turn's events from the first, or from behind ``Last-Event-ID``; the stream ends after ``turn.finished``.

    A reader that has everything of a finished turn gets 204, which tells an ``EventSource`` not to come back.
    """
    given = request.headers.get("last-event-id", "")
    try:
        after, epoch, at_ms = read_event_id(given) if given else (0, "", 0)
    except ValueError:
        message = f"Last-Event-ID: must be the id of an event of this stream; got {shown(given)}"
        raise bad_request(message, param="Last-Event-ID", code="invalid_event_id") from None
    turn = await relay.client.reader.get(turn_id, owner=owner)
    stranger = after > 0 and (epoch != turn.epoch or after > turn.seq)
    if stranger:
        after = 0
    if turn.ended_with(after, at_ms):
        return Response(status_code=204)
    frames = stream(relay, turn, owner, after, at_ms, stranger=stranger)
    return StreamingResponse(frames, media_type="text/event-stream", headers=SSE_HEADERS)


async def stream(
    relay: Relay, turn: Turn, owner: str | None, after: int, at_ms: int, *, stranger: bool
) -> AsyncIterator[bytes]:
    """The events as frames. A reader of another history is asked to forget what it has."""
    yield _frame(reset("the id is not of this log")) if stranger else PING
    try:
        with relay.readers.reading(turn.turn_id):
            found = follow(relay, turn.turn_id, owner, after=after, epoch=turn.epoch, at_ms=at_ms)
            async with aclosing(found) as events:
                async for event in events:
                    yield PING if event is None else _frame(event)
    except Exception as error:
        yield event_frame("error", broken(error, turn.turn_id, turn.request.locale).body())


def _frame(event: Event) -> bytes:
    """The event as a frame, with its id to come back with; ``log.reset``, which is in no log, has none."""
    return event_frame(event.kind, event.to_dict(), event.event_id if event.seq else "")


# The files of a turn: listed and sent to its owner; one of them to the holder of its signed link.

#: Bytes that are read at once.
_PIECE = 256 * 1024
#: What an agent wrote runs nowhere: it is saved, not opened, and where a browser opens it all the same, it has no
#: rights and no origin. Other sites may draw it as an image, as Open WebUI does.
_HARMLESS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "cross-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "private, no-store",
}

#: Of those who have a link, and no key.
signed = APIRouter(include_in_schema=False)


@router.get("/{turn_id}/files", response_model=None)
async def list_files(turn_id: Named, relay: RelayOf, owner: Reach) -> Response:
    """The files of the accepted answer, each with a link that needs no key until it expires."""
    data = [{"object": "turn.file", **each.to_dict()} for each in await linked_files(relay, turn_id, owner)]
    return JSON({"object": "list", "data": data})


@router.get("/{turn_id}/files/{path:path}", response_model=None)
async def send_file(turn_id: Named, path: str, request: Request, relay: RelayOf, owner: Reach) -> Response:
    """One file, whole or the ``Range`` asked for."""
    return await _sent(request, relay, turn_id, path, owner)


@signed.get("/files/{turn_id}/{path:path}", response_model=None)
async def send_linked_file(
    turn_id: str, path: str, request: Request, relay: RelayOf, until: str = "", signature: str = ""
) -> Response:
    """One file, to the holder of its link."""
    if not needs_key(relay):
        require_local(request)
    await require_link(relay, turn_id, path, until, signature)
    return await _sent(request, relay, turn_id, path, None)


async def _sent(request: Request, relay: Relay, turn_id: str, path: str, owner: str | None) -> Response:
    turn = await relay.client.reader.get(turn_id, owner=owner)
    attempts = await relay.client.reader.attempts(turn_id, owner=owner)
    kept = await kept_files(relay.client.snapshots, turn)
    file, fd = await asyncio.to_thread(open_file, relay.settings, turn, attempts, path, kept)
    try:
        start, end = _range(request.headers.get("range", ""), file.size)
    except ApiError:
        os.close(fd)
        raise
    headers = _HARMLESS | {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}",
        "content-length": str(end - start),
        "accept-ranges": "bytes",
    }
    part = (start, end) != (0, file.size)
    if part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    return StreamingResponse(
        _pieces(fd, start, end),
        206 if part else 200,
        headers,
        f"{file.type}; charset=utf-8" if file.type.startswith("text/") else file.type,
    )


async def _pieces(fd: int, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes of a file, piece by piece; it is closed whatever becomes of its reader."""
    try:
        while start < end and (piece := await asyncio.to_thread(os.pread, fd, min(_PIECE, end - start), start)):
            yield piece
            start += len(piece)
    finally:
        os.close(fd)


def _range(asked: str, size: int) -> tuple[int, int]:
    """The first byte, and the one behind the last, that a ``Range`` asks for; all where it asks for several.

    Raises ``ApiError``: 416 ``range_not_satisfiable``.
    """
    unit, _, span = asked.partition("=")
    first, dash, last = span.partition("-")
    if unit.strip().lower() != "bytes" or not dash or "," in span:
        return 0, size
    with suppress(ValueError):
        start = int(first) if first.strip() else max(0, size - int(last))
        end = min(int(last) + 1, size) if first.strip() and last.strip() else size
        if 0 <= start < end:
            return start, end
        message = f"Range: this file has {size} bytes"
        headers = {"content-range": f"bytes */{size}"}
        raise ApiError(416, message, param="Range", code="range_not_satisfiable", headers=headers)
    return 0, size


# ``POST /v1/phases``: the phases of a phases.yaml as turns, stored at once and run in order.

of_phases = APIRouter(prefix="/v1/phases")


@of_phases.post("", response_model=None, status_code=202, openapi_extra=operation(PhasesBody))
async def submit_phases(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Store a turn for each phase and return at once. Gates that run commands are for operators."""
    key = read_idempotency_key(request.headers)
    body = read(PhasesBody, await read_object(request, relay.settings.max_body_bytes))
    directory, locale = body.directory or "", body.locale or ""
    phases = await off_the_loop(lambda: read_phases(body.phases), caller.owner)
    folder = folder_of(directory)
    # Operators and callers without keys on this machine have all folders.
    if not (caller.operator or caller.keyless or granted(relay.settings, folder, caller.holder)):
        message = (
            f"directory: {shown(folder)} is not granted to this key; an operator grants it with "
            "HELIX_PHASE_DIRECTORIES=FOLDER=OWNER (docs/WORKFLOW-SYSTEM.md)"
        )
        raise ApiError(403, message, param="directory", code="directory_not_granted")
    # A line that a phase's author names, and that its gate runs as the worker's user.
    commands = any(gate.options.get("command") for phase in phases for gate in phase.quality_gates)
    if commands and not caller.operator:
        if caller.keyless:
            raise needs_token()
        message = "a gate that runs a command: only operators may submit it (or `turns phase run`)"
        raise ApiError(403, message, param="phases", code="operators_only")
    allowed = caller.settings(relay.settings).models
    if refused := [each.model for each in phases if each.model and each.model not in allowed]:
        raise bad_request(f"unknown model {shown(refused[0])}", param="phases", code="model_not_found")
    model = body.model or next(iter(allowed))
    if model not in allowed:
        raise bad_request(f"unknown model {shown(model)}", param="model", code="model_not_found")
    escalation = body.escalation and read_escalation(body.escalation, caller.settings(relay.settings))
    await asyncio.to_thread(_require_files, relay.settings, phases, folder, caller.owner)
    await require_room(relay, caller, locale, count=len(phases), size=size_of(request))
    turn_ids = await relay.client.submitter.submit_phases(
        phases,
        owner=caller.owner,
        directory=directory,
        model=model,
        locale=locale,
        deadline_seconds=body.deadline_seconds or 0.0,
        escalation=escalation,
        operator=caller.operator,
        key=caller.holder,
        share=caller.share,
        idempotency_key=key,
        traceparent=traceparent_of(request.headers.getlist("traceparent")),
    )
    with suppress(StoreUnavailable):  # they are stored; that they are counted is worth no error
        await relay.client.allowances.note(caller.owner, caller.limits, turn_ids)
    turns = [
        {"phase": phase.id, "turn_id": turn_id, "url": f"/v1/turns/{turn_id}"}
        for phase, turn_id in zip(phases, turn_ids, strict=True)
    ]
    return JSON({"object": "list", "data": turns}, 202)


def _require_files(settings: Settings, phases: Sequence[Phase], directory: str, owner: str) -> None:
    """Refuse what no worker could carry out: a folder that is not there, an input that is a link or a pipe.

    Raises ``BadRequest``: names the folder. ``PhaseError``: names every input.
    """
    root = settings.root.resolve()
    if problem := directory_problem(root, directory):
        raise bad_request(f"directory: {problem}", param="directory")
    if problems := input_problems(root, phases, requests_of(phases, settings, directory=directory, owner=owner)):
        raise PhaseError(problems)

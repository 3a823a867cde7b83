"""Lists a turn's files and sends them to the turn's owner or to holders of a signed link."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api_client.turns.turn_files import find_snapshot_files, open_file
from api_client.web.errors import ApiError
from api_client.web.identity.access import NamedTurnId, VisibleOwner, requires_key
from api_client.web.identity.origin import require_local
from api_client.web.relay.file_links import link_files, require_link
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.wire import JSONResponse

router = APIRouter(prefix="/v1/turns")


_PIECE_BYTES = 256 * 1024
#: An agent's files must not run: they are saved, not opened, and have no rights and no origin if a browser opens
#: them all the same. Other sites may show them as images, as Open WebUI does.
_SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "cross-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "private, no-store",
}

signed_router = APIRouter(include_in_schema=False)


@router.get("/{turn_id}/files", response_model=None)
async def list_files(turn_id: NamedTurnId, relay: CurrentRelay, owner: VisibleOwner) -> Response:
    """List the files of the accepted answer. Each file's link works without an API key until it expires."""
    data = [{"object": "turn.file", **each.to_dict()} for each in await link_files(relay, turn_id, owner)]
    return JSONResponse({"object": "list", "data": data})


@router.get("/{turn_id}/files/{path:path}", response_model=None)
async def send_file(
    turn_id: NamedTurnId, path: str, request: Request, relay: CurrentRelay, owner: VisibleOwner
) -> Response:
    """Send a file, or the requested ``Range`` of it."""
    return await _send_file(request, relay, turn_id, path, owner)


@signed_router.get("/files/{turn_id}/{path:path}", response_model=None)
async def send_linked_file(
    turn_id: str, path: str, request: Request, relay: CurrentRelay, until: str = "", signature: str = ""
) -> Response:
    """Send a file to the holder of a signed link."""
    if not requires_key(relay):
        require_local(request)
    await require_link(relay, turn_id, path, until, signature)
    return await _send_file(request, relay, turn_id, path, None)


async def _send_file(request: Request, relay: Relay, turn_id: str, path: str, owner: str | None) -> Response:
    turn = await relay.client.reader.read_turn(turn_id, owner=owner)
    attempts = await relay.client.reader.read_attempts(turn_id, owner=owner)
    kept = await find_snapshot_files(relay.client.session_files, turn)
    file, fd = await asyncio.to_thread(open_file, relay.settings, turn, attempts, path, kept)
    try:
        start, end = _parse_range(request.headers.get("range", ""), file.size)
    except ApiError:
        os.close(fd)
        raise
    headers = _SAFE_HEADERS | {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}",
        "content-length": str(end - start),
        "accept-ranges": "bytes",
    }
    part = (start, end) != (0, file.size)
    if part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    return StreamingResponse(
        _read_pieces(fd, start, end),
        206 if part else 200,
        headers,
        f"{file.type}; charset=utf-8" if file.type.startswith("text/") else file.type,
    )


async def _read_pieces(fd: int, start: int, end: int) -> AsyncIterator[bytes]:
    try:
        while start < end and (piece := await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, end - start), start)):
            yield piece
            start += len(piece)
    finally:
        os.close(fd)


def _parse_range(asked: str, size: int) -> tuple[int, int]:
    """Return the start and end of the byte range that a ``Range`` header requests, by default the whole file.

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

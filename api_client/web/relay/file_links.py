"""Signed links to a turn's files; each link opens one file without a key until it expires."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from urllib.parse import quote

from api_client.contract.session_files import SessionFilesError
from api_client.turns.turn_files import LinkedFile, find_snapshot_files, list_files
from api_client.web.errors import ApiError
from api_client.web.relay.relay import Relay

#: Kind of link: a signature of one kind opens no other kind.
_FILE = "file"


async def link_files(relay: Relay, turn_id: str, owner: str | None) -> list[LinkedFile]:
    """Return a successful turn's files, each with a signed link. Raises the errors of ``TurnReader.read_turn``."""
    turn = await relay.client.reader.read_turn(turn_id, owner=owner)
    if not turn.success:
        return []
    attempts = await relay.client.reader.read_attempts(turn_id, owner=owner)
    kept = await find_snapshot_files(relay.client.session_files, turn)
    until = int(time.time() + relay.settings.link_seconds)
    found = []
    for file in await asyncio.to_thread(list_files, relay.settings, turn, attempts, kept):
        signature = await relay.client.links.sign_link(_FILE, turn_id, file.path, until=until)
        link = f"/files/{turn_id}/{quote(file.path)}?until={until}&signature={signature}"
        found.append(LinkedFile(file, link, until))
    return found


async def list_readable_files(relay: Relay, turn_id: str, owner: str | None) -> list[LinkedFile]:
    """Return a turn's files with signed links, or an empty list if the stored files are unavailable."""
    with suppress(SessionFilesError):
        return await link_files(relay, turn_id, owner)
    return []


async def require_link(relay: Relay, turn_id: str, path: str, until: str, signature: str) -> None:
    """Raise ``ApiError`` (403 ``link_invalid``) unless a file link's signature is valid and has not expired."""
    number = parse_integer(until)
    if not await relay.client.links.is_valid(signature, _FILE, turn_id, path, until=number):
        message = "this link has expired, or this relay did not make it"
        raise ApiError(403, message, param="signature", code="link_invalid")


def parse_integer(text: str) -> int:
    """Parse a non-negative integer, or return 0 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0

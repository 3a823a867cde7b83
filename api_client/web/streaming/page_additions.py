"""Reads what a page of Open WebUI shows below an accepted answer."""

from __future__ import annotations

import structlog

from api_client.contract.errors import HelixError
from api_client.web.openwebui.answer_additions import format_file_links, format_note, format_recap_note
from api_client.web.relay.file_links import link_files
from api_client.web.relay.relay import Relay
from api_client.web.streaming.reply import Reply

log = structlog.get_logger(__name__)


async def make_additions(relay: Relay, reply: Reply, *, was_suspended: bool = True) -> str:
    """Return the note and the links to files below an answer, or an empty string where there is no page for them.

    ``was_suspended``: the turn may have asked people questions, which the note sums up.
    """
    if not reply.has_page or reply.is_json:
        return ""
    added = list[str]()
    try:
        if (note := relay.settings.chat_note == "yes") or was_suspended:
            turn = await relay.client.reader.read_turn(reply.turn_id, owner=reply.owner)
            added.append((format_note if note else format_recap_note)(turn, reply.locale))
        if reply.pages_url:
            added.append(format_file_links(await link_files(relay, reply.turn_id, reply.owner), reply.pages_url))
    except HelixError as error:  # the answer is worth sending without additions
        log.warning("relay.nothing_attached", turn_id=reply.turn_id, error=type(error).__name__)
    return "".join(added)

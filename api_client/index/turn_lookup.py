"""Finds a turn by the beginning of its id."""

from __future__ import annotations

import re

from api_client.contract.errors import BadRequest, TurnNotFound
from api_client.contract.turn import Turn, check_turn_id
from api_client.index.lists import TurnLists
from api_client.index.search import Search

#: Written instead of an id: the turn that was submitted last.
LAST = "last"
#: Turns of a session among which a turn's neighbours are searched.
_NEIGHBOURS = 200
_BEGINNING = re.compile(r"turn-[0-9a-f]{1,31}|[0-9a-f]{4,31}")


def may_abbreviate_turn(text: str) -> bool:
    """Return True if a text may identify a turn: the beginning of a turn id, or ``last``."""
    return text.strip() == LAST or bool(_BEGINNING.fullmatch(text.strip()))


async def find_turn(lists: TurnLists, text: str, *, owner: str | None = None) -> str:
    """Return the id of the turn that a user names by a full id, the beginning of an id, or ``last``.

    With ``owner``, only that owner's turns exist. Raises ``TurnNotFound``, or ``BadRequest`` for an ambiguous text.
    """
    text, owner = text.strip(), owner or ""
    try:
        check_turn_id(text)
        return text
    except ValueError:
        pass
    if text == LAST:
        newest = [
            await lists.read_page(Search(owner=owner, statuses=(part,)), count=1) for part in ("unfinished", "finished")
        ]
        turns = [turn for page in newest for turn in page.turns]
        if not turns:
            raise TurnNotFound(text)
        return max(turns, key=lambda turn: (turn.created_at, turn.turn_id)).turn_id
    if not _BEGINNING.fullmatch(text):
        raise TurnNotFound(text[:80])
    found = await lists.find_ids(text if text.startswith("t") else f"turn-{text}", owner=owner)
    if len(found) > 1:
        raise BadRequest(f"several turns begin with {text!r}, such as {' and '.join(found)}: write more of the id")
    if not found:
        raise TurnNotFound(text)
    return found[0]


async def find_neighbours(lists: TurnLists, turn: Turn) -> tuple[str, str]:
    """Return the ids of the session's previous and next turn. An id is empty if there is no such turn."""
    search = Search(owner=turn.request.owner, session_id=turn.request.session_id)
    page = await lists.read_page(search, count=_NEIGHBOURS)
    ids = [each.turn_id for each in sorted(page.turns, key=lambda each: (each.created_at, each.turn_id))]
    if turn.turn_id not in ids:
        return "", ""
    place = ids.index(turn.turn_id)
    return ids[place - 1] if place else "", ids[place + 1] if place + 1 < len(ids) else ""

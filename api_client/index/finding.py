"""Finding the turn that somebody means by a part of its id."""

from __future__ import annotations

import re

from api_client.contract.errors import BadRequest, TurnNotFound
from api_client.contract.turn import Turn, check_turn_id
from api_client.index.lists import TurnLists
from api_client.index.search import Search

#: Instead of an id: the turn that was submitted last.
LAST = "last"
#: Turns of a session among which a turn's neighbours are looked for.
_NEIGHBOURS = 200
_BEGINNING = re.compile(r"turn-[0-9a-f]{1,31}|[0-9a-f]{4,31}")


def means_a_turn(text: str) -> bool:
    """Return whether a text is not a whole id, and may be the beginning of one, or ``last``."""
    return text.strip() == LAST or bool(_BEGINNING.fullmatch(text.strip()))


async def find_turn(lists: TurnLists, text: str, *, owner: str | None = None) -> str:
    """The id of the turn that ``text`` means: the id itself, the beginning of one turn's id, or ``last``.

    With ``owner`` only this owner's turns are meant, and others are not there. Raises ``TurnNotFound``: there is none.
    ``BadRequest``: the ids of several turns begin like this. ``StoreUnavailable``: the store does not answer.
    """
    text, owner = text.strip(), owner or ""
    try:
        check_turn_id(text)
        return text
    except ValueError:
        pass
    if text == LAST:
        newest = [
            await lists.page(Search(owner=owner, statuses=(part,)), count=1) for part in ("unfinished", "finished")
        ]
        turns = [turn for page in newest for turn in page.turns]
        if not turns:
            raise TurnNotFound(text)
        return max(turns, key=lambda turn: (turn.created_at, turn.turn_id)).turn_id
    if not _BEGINNING.fullmatch(text):
        raise TurnNotFound(text[:80])
    found = await lists.find(text if text.startswith("t") else f"turn-{text}", owner=owner)
    if len(found) > 1:
        raise BadRequest(f"several turns begin with {text!r}, such as {' and '.join(found)}: write more of the id")
    if not found:
        raise TurnNotFound(text)
    return found[0]


async def neighbours(lists: TurnLists, turn: Turn) -> tuple[str, str]:
    """The ids of the turns before and after a turn in its session; empty where none is, or none was found soon."""
    search = Search(owner=turn.request.owner, session_id=turn.request.session_id)
    page = await lists.page(search, count=_NEIGHBOURS)
    ids = [each.turn_id for each in sorted(page.turns, key=lambda each: (each.created_at, each.turn_id))]
    if turn.turn_id not in ids:
        return "", ""
    place = ids.index(turn.turn_id)
    return ids[place - 1] if place else "", ids[place + 1] if place + 1 < len(ids) else ""

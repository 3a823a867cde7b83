"""Reads finished turns with their attempts, newest first, a page at a time: memory stays constant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFound
from api_client.contract.turn import AttemptRecord, Turn
from api_client.index.search import Place, Search

#: Turns whose attempts are read at once.
_PAGE = 50


async def finished_chats(
    client: TurnsClient, since: float, model: str = ""
) -> AsyncGenerator[tuple[Turn, list[AttemptRecord]]]:
    """Chat turns that finished after ``since`` (seconds since the epoch) with their attempts, newest first."""
    after: Place | None = None
    search = Search(statuses=("finished",), model=model, since=since)
    while True:
        page = await client.lists.page(search, after=after, count=_PAGE)
        chats = [turn for turn in page.turns if not turn.request.phase]
        for turn, attempts in zip(
            chats, await asyncio.gather(*(_attempts(client, turn) for turn in chats)), strict=True
        ):
            yield turn, attempts
        if page.next is None:
            return
        after = page.next


async def _attempts(client: TurnsClient, turn: Turn) -> list[AttemptRecord]:
    try:
        return await client.attempts(turn.turn_id)
    except TurnNotFound:  # removed by retention meanwhile
        return []

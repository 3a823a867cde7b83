"""Reads finished turns with their attempts, newest first, a page at a time: memory stays constant."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from api_client.client import TurnsClient
from api_client.contract.attempt import AttemptRecord
from api_client.contract.turn import Turn
from api_client.index.search import Place, Search

#: Turns whose attempts are read at once.
_PAGE = 50


async def finished_turns(client: TurnsClient, since: float, model: str = "") -> AsyncGenerator[Turn]:
    """Chat turns that finished after ``since`` (seconds since the epoch), newest first, without their answers."""
    async for chats in _pages(client, since, model):
        for turn in chats:
            yield turn


async def finished_chats(
    client: TurnsClient, since: float, model: str = ""
) -> AsyncGenerator[tuple[Turn, list[AttemptRecord]]]:
    """The same turns with their attempts."""
    async for chats in _pages(client, since, model):
        for each in zip(chats, await client.lists.attempts(chats), strict=True):
            yield each


async def _pages(client: TurnsClient, since: float, model: str) -> AsyncGenerator[list[Turn]]:
    after: Place | None = None
    search = Search(statuses=("finished",), model=model, since=since)
    while True:
        page = await client.lists.page(search, after=after, count=_PAGE)
        yield [turn for turn in page.turns if not turn.request.phase]
        if page.next is None:
            return
        after = page.next

"""``turns list``: which turns there are, by what they are; and finished ones, a page at a time, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.attempt import AttemptRecord
from api_client.contract.turn import Turn, TurnState
from api_client.index.line import line_of
from api_client.index.lists import Page
from api_client.index.search import SORTS, Cursor, Search
from api_client.workers.reason import Wait
from worker.cli.asking import with_client
from worker.cli.output import json_option, moment, one_line, write_json, write_table
from worker.cli.turns.filters import filter_options, search_of

_OWNER_WIDTH = 20
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
    after: Cursor | None = None
    search = Search(statuses=("finished",), model=model, since=since)
    while True:
        page = await client.lists.page(search, after=after, count=_PAGE)
        yield [turn for turn in page.turns if not turn.request.phase]
        if page.next is None:
            return
        after = page.next


def _place(_context: click.Context, _parameter: click.Parameter, text: str) -> Cursor | None:
    try:
        return Cursor.parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("list")
@filter_options()
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Order.")
@click.option(
    "--last", "count", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most this many."
)
@click.option("--cursor", "after", default="", callback=_place, help="Go on behind this place: `next` of --json.")
@json_option
def list_turns(count: int, after: Cursor | None, as_json: bool, **filters: Any) -> None:
    """List turns: unfinished ones first, then finished ones, each newest first.

    Several filters must all match. `turns list --outcome failed --since 8h` answers what failed last night.
    """
    search = search_of(**filters)
    page, waits = with_client(lambda client: _with_waits(client, search, after, count))
    if as_json:
        lines = [line_of(turn, waits.get(turn.turn_id)) for turn in page.turns]
        write_json({"turns": lines, "next": str(page.next) if page.next else None})
        return
    if not page.turns:
        click.echo("no such turn")
        return
    rows: list[tuple[str, ...]] = [("turn", "status", "when", "took", "attempts", "model", "owner", "flow", "message")]
    write_table([*rows, *(_row(turn, waits.get(turn.turn_id)) for turn in page.turns)])
    if page.next:
        click.echo(f"more: --cursor {page.next}", err=True)


async def _with_waits(
    client: TurnsClient, search: Search, after: Cursor | None, count: int
) -> tuple[Page, dict[str, Wait]]:
    page = await _all(client, search, after, count)
    return page, await client.workers.waits(page.turns)


async def _all(client: TurnsClient, search: Search, after: Cursor | None, count: int) -> Page:
    """As many as were asked for: one page after the other, however long each of them takes."""
    found: list[Turn] = []
    while True:
        page = await client.lists.page(search, after=after, count=count - len(found))
        found += page.turns
        if page.next is None or len(found) == count:
            return Page(turns=tuple(found), next=page.next)
        after = page.next


def _row(turn: Turn, wait: Wait | None) -> tuple[str, ...]:
    status = turn.outcome.value if turn.outcome else "stopping" if turn.stop else turn.state.value
    if wait and turn.state is not TurnState.PARKED:
        status += f": {one_line(wait.words(public=True), 80)}"
    took = f"{turn.finished_at - turn.created_at:.1f} s" if turn.finished_at else ""
    return (
        turn.turn_id,
        status,
        moment(turn.finished_at or turn.created_at),
        took,
        f"{turn.attempt}/{turn.allowed or turn.request.max_attempts}",
        one_line(turn.request.model, 24),
        one_line(turn.request.shown_owner, _OWNER_WIDTH),
        one_line(turn.flow, 16) or "-",
        one_line(turn.request.prompt, 60),
    )

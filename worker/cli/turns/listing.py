"""``turns list``: which turns there are, by what they are."""

from __future__ import annotations

import time
from datetime import datetime

import click

from api_client.client import TurnsClient
from api_client.contract.turn import Turn
from api_client.index.line import line_of
from api_client.index.lists import Page
from api_client.index.search import SORTS, STATUSES, Place, Search
from worker.cli.figures.rates import span
from worker.cli.output import json_option, one_line, write_json, write_table
from worker.cli.turns.turn import with_client


def _place(_context: click.Context, _parameter: click.Parameter, text: str) -> Place | None:
    try:
        return Place.parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("list")
@click.option(
    "--status", "--state", "--outcome", "statuses", type=click.Choice(list(STATUSES)), multiple=True,
    help="Only in this state, or of this outcome; may be repeated.",
)  # fmt: skip
@click.option("--model", default="", help="Only of this model.")
@click.option("--session", "session_id", default="", help="Only of this session.")
@click.option("--owner", default="", help="Only of this owner (the hash that --json shows).")
@click.option("--rule", default="", help="Only with an answer that broke this rule, or has an issue of this code.")
@click.option("--text", default="", help="Only with this text in the message, in any case of letters.")
@click.option("--since", callback=span, metavar="SPAN", help="Only of the last 90s, 30m, 1h, 7d, 2w.")
@click.option("--until", callback=span, metavar="SPAN", help="Only those that ended (or began) before this long ago.")
@click.option("--lost", is_flag=True, help="Only turns that a worker died or froze with.")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Order.")
@click.option(
    "--last", "count", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many."
)
@click.option("--cursor", "after", default="", callback=_place, help="Go on behind this place: `next` of --json.")
@json_option
def list_turns(
    count: int, after: Place | None, since: float | None, until: float | None, as_json: bool, **filters: object
) -> None:
    """List turns: unfinished ones first, then finished ones, each newest first.

    Several filters must all match. `turns list --outcome failed --since 8h` answers what failed last night.
    """
    now = time.time()
    search = Search(since=now - since if since else 0.0, until=now - until if until else 0.0, **filters)  # type: ignore[arg-type]
    page = with_client(lambda client: _all(client, search, after, count))
    if as_json:
        write_json({"turns": [line_of(turn) for turn in page.turns], "next": str(page.next) if page.next else None})
        return
    if not page.turns:
        click.echo("no such turn")
        return
    rows: list[tuple[str, ...]] = [("turn", "status", "when", "took", "attempts", "model", "message")]
    write_table([*rows, *(_row(turn) for turn in page.turns)])
    if page.next:
        click.echo(f"more: --cursor {page.next}", err=True)


async def _all(client: TurnsClient, search: Search, after: Place | None, count: int) -> Page:
    """As many as were asked for: one page after the other, however long each of them takes."""
    found: list[Turn] = []
    while True:
        page = await client.lists.page(search, after=after, count=count - len(found))
        found += page.turns
        if page.next is None or len(found) == count:
            return Page(turns=tuple(found), next=page.next)
        after = page.next


def _row(turn: Turn) -> tuple[str, ...]:
    status = turn.outcome.value if turn.outcome else "stopping" if turn.stop else turn.state.value
    took = f"{turn.finished_at - turn.created_at:.1f} s" if turn.finished_at else ""
    when = datetime.fromtimestamp(turn.finished_at or turn.created_at).astimezone()
    return (
        turn.turn_id,
        status,
        f"{when:%Y-%m-%d %H:%M:%S%z}",
        took,
        f"{turn.attempt}/{turn.allowed or turn.request.max_attempts}",
        one_line(turn.request.model, 24),
        one_line(turn.request.prompt, 60),
    )

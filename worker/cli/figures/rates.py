"""``turns retry-rate``: how often the agent had to be asked again, and since when."""

from __future__ import annotations

from datetime import datetime

import click

from api_client.contract.keys import BUCKETS
from api_client.figures.stats import RETRY_BREAKDOWNS, RetryRate, Share
from worker.cli.asking import span, with_client
from worker.cli.output import json_option, number_of, one_line, write_json, write_table

#: Columns of a course of time: what was rejected most.
_COLUMNS = 5


@click.command("retry-rate")
@click.option(
    "--since",
    callback=span,
    default="1h",
    metavar="SPAN",
    show_default=True,
    help="How far back: 90s, 30m, 1h, 7d, 2w.",
)
@click.option("--by", type=click.Choice(RETRY_BREAKDOWNS), help="Break it down.")
@click.option("--model", default="", help="Of this model alone.")
@click.option("--every", type=click.Choice(list(BUCKETS)), help="Show how it went: a line for each.")
@json_option
def retry_rate(since: float, by: str | None, model: str, every: str | None, as_json: bool) -> None:
    """Turns that had at least one validation retry, divided by finished turns.

    By validator or code: rejected attempts divided by validated attempts. What was lost to crashes does not count.
    """
    try:
        rate = with_client(lambda client: client.figures.retry_rate(since, by or "", every or "", model))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        write_json(rate.to_dict())
        return
    click.echo(f"{percent(rate.rate)} of {number_of(rate.turns, 'finished turn')} asked again ({rate.retried})")
    if by and rate.rows:
        click.echo()
        headings = ("rejected", "of judged", "rate") if by in {"validator", "code"} else ("again", "of turns", "rate")
        rows = [(one_line(r.name, 60), str(r.rejected), str(r.validated), percent(r.rate)) for r in rate.rows]
        write_table([(by, *headings), *rows])
    if rate.pieces:
        click.echo()
        write_table(_course(rate))
        if still := sum(not _counts(piece) for piece in rate.pieces):
            click.echo(f"left out: {number_of(still, str(every))} without a turn")


def _course(rate: RetryRate) -> list[tuple[str, ...]]:
    """A line for each piece of the time, and a column for each of the rows that count most."""
    names = [row.name for row in rate.rows[:_COLUMNS]]
    head = ("from", "turns", "again", "rate", *(one_line(name, 30) for name in names))
    lines = [head]
    for piece in filter(_counts, rate.pieces):
        rows = {row.name: row for row in piece.rows}
        when = f"{datetime.fromtimestamp(piece.start).astimezone():%Y-%m-%d %H:%M%z}"
        whole = (when, str(piece.turns), str(piece.retried), percent(piece.rate))
        lines.append((*whole, *(_cell(rows.get(name)) for name in names)))
    return lines


def _counts(piece: RetryRate) -> bool:
    """Whether a turn finished, or an answer was judged, in this piece of the time."""
    return bool(piece.turns or any(row.validated for row in piece.rows))


def _cell(row: Share | None) -> str:
    return f"{percent(row.rate)} of {row.validated}" if row and row.validated else "-"


def percent(rate: float | None) -> str:
    """A share as people read it."""
    return "-" if rate is None else f"{rate:.1%}"

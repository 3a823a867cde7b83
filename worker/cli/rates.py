"""``turns retry-rate``: how often the agent had to be asked again."""

from __future__ import annotations

import click

from api_client.spans import seconds_of
from worker.cli.output import json_option, one_line, write_json, write_table
from worker.cli.turn import with_client


def span(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Read an option that is a span of time."""
    try:
        return seconds_of(value) if value else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("retry-rate")
@click.option(
    "--since",
    callback=span,
    default="1h",
    metavar="SPAN",
    show_default=True,
    help="How far back: 90s, 30m, 1h, 7d, 2w.",
)
@click.option("--by", type=click.Choice(["validator", "code", "session"]), help="Break it down.")
@json_option
def retry_rate(since: float, by: str | None, as_json: bool) -> None:
    """Turns that had at least one validation retry, divided by finished turns.

    By validator or code: rejected attempts divided by validated attempts. What was lost to crashes does not count.
    """
    rate = with_client(lambda client: client.retry_rate(since, by or ""))
    if as_json:
        write_json(rate.to_dict())
        return
    click.echo(f"{percent(rate.rate)} of {rate.turns} finished turns were asked again ({rate.retried})")
    if by and rate.rows:
        click.echo()
        head = (by, "again", "of turns", "rate") if by == "session" else (by, "rejected", "of validated", "rate")
        rows = [(one_line(r.name, 60), str(r.rejected), str(r.validated), percent(r.rate)) for r in rate.rows]
        write_table([head, *rows])


def percent(rate: float | None) -> str:
    """A share as people read it."""
    return "-" if rate is None else f"{rate:.1%}"

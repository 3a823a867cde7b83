"""``turns retry-rate``: how often the agent had to be asked again."""

from __future__ import annotations

import re

import click

from worker.cli.output import json_option, one_line, write_json, write_table
from worker.cli.turn import with_client

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def span(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """A span of time as an option's value, in seconds.

    Raises:
        BadParameter: it is none.
    """
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])", value.strip())
    if not match or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is no span of time: write 90s, 30m, 1h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]]


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

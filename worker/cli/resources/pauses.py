"""Implement ``turns pause start``: keep turns from starting, for example during maintenance."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import datetime, timedelta

import click

from api_client.client import TurnsClient
from api_client.contract.clock_time import format_clock_time
from api_client.index.search import Search
from api_client.pauses.pause import LIMIT, WHATS, Pause
from api_client.resources.pauses import PAUSES
from worker.cli import NO
from worker.cli.output import json_option, write_result
from worker.cli.resources.listing import make_list_command
from worker.cli.store_access import describe_caller, parse_span, run_with_client

_LOOK_SECONDS = 0.5


def _parse_time(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Parse a time of day (14:30) or a date with time, and return Unix seconds, or 0 for an empty string."""
    if not value:
        return 0.0
    try:
        if re.fullmatch(r"\d{1,2}:\d\d", value):
            now = datetime.now().astimezone()
            hour, minute = map(int, value.split(":"))
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > now else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a time such as 14:30 or 2026-12-24T08:00") from None


@click.command(epilog="Example: turns pause start model claude --for 30m")
@click.argument("what", type=click.Choice(list(WHATS)))
@click.argument("name", default="")
@click.option("--reason", default="", help="Reason, which chat users read.")
@click.option("--for", "seconds", callback=parse_span, default="", metavar="SPAN", help="Duration: 90s, 30m, 2h, 1d.")
@click.option("--until", callback=_parse_time, default="", metavar="TIME", help="End: 14:30, or 2026-12-24T08:00.")
@click.option("--wait", is_flag=True, help="Wait until its agents have ended; for the intake, until all turns have.")
@json_option
def start(what: str, name: str, reason: str, seconds: float, until: float, wait: bool, as_json: bool) -> None:
    """Pause the intake of new turns, or the turns of the model, queue, key or owner NAME.

    Running agents finish. Other turns wait, without losing time of their deadline, until the pause ends. A paused
    intake refuses new turns (503 with Retry-After) and lets stored turns run.
    """
    if seconds and until:
        raise click.UsageError("--for or --until, not both")
    if wait and what in {"key", "owner"}:
        raise click.UsageError("--wait goes with intake, model and queue")

    async def pause_turns(client: TurnsClient) -> Pause:
        begun = Pause(what=what, name=name, reason=reason.strip(), until=until, by=describe_caller())
        begun = await client.pauses.set_pause(begun, seconds=seconds)
        while wait and await _has_running_turns(client, begun):  # noqa: ASYNC110 (it happens elsewhere)
            await asyncio.sleep(_LOOK_SECONDS)
        return begun

    begun = run_with_client(pause_turns)
    ends = (
        f"until {format_clock_time(begun.until, time.time())}"
        if begun.until
        else f"end it: turns pause end {begun.title}"
    )
    write_result(as_json, begun.to_dict(), f"paused {begun.title}: {WHATS[what]}; {ends}")


async def _has_running_turns(client: TurnsClient, begun: Pause) -> bool:
    if begun.what == "intake":
        return bool(await client.lists.list_unfinished(Search()))
    state = "validating" if begun.name == "check" else "running"
    search = Search(statuses=(state,), model=begun.name if begun.what == "model" else "")
    return bool(await client.lists.list_unfinished(search))


@click.command(epilog="Example: turns pause end model claude")
@click.argument("what", type=click.Choice([*WHATS, LIMIT]), required=False)
@click.argument("name", default="")
@click.option("--all", "everything", is_flag=True, help="End every pause, and close every breaker.")
@json_option
def end(what: str | None, name: str, everything: bool, as_json: bool) -> None:
    """End a pause or the wait for a service's rate limit; for a model, also close its circuit breaker.

    Exit code 1 if nothing was paused.
    """
    if everything == bool(what):
        raise click.UsageError("name what to resume, or --all")
    ended: list[str]
    if what:
        there = run_with_client(lambda client: client.pauses.end_pause(what, name, by=describe_caller()))
        ended = [f"{what} {name}".rstrip()] if there else []
    else:
        ended = [each.title for each in run_with_client(lambda client: client.pauses.end_all(by=describe_caller()))]
    said = "\n".join(f"resumed: {title}" for title in ended) or "nothing was paused"
    write_result(as_json, {"resumed": ended}, said)
    if not ended and what:
        raise click.exceptions.Exit(NO)


list_pauses = make_list_command(
    PAUSES,
    "list",
    "Show the pauses and which breakers are open: why, since when, until when, by whom.",
    under="pauses",
    example="pause list",
)

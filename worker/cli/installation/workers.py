"""``turns workers``: who works where, on what, since when, and who is gone; quiet, drain, stop, resume."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from datetime import datetime, timedelta

import click
from redis.exceptions import RedisError

from api_client.client import TurnsClient, order_worker
from api_client.contract.settings import Settings, load
from api_client.contract.tasks import RUN_QUEUE
from api_client.contract.turn import owner_named
from api_client.contract.worker_reports import WorkerOrder, WorkerReport
from api_client.index import Search
from api_client.nouns import WORKERS
from api_client.pauses import LIMIT, WHATS, Pause, clock_time
from api_client.store.connecting import open_store
from api_client.workers.reports import written_reports
from worker.cli import NO
from worker.cli.nouns import write_rows
from worker.cli.terminal import json_option, number_of, one_line, span, whoami, with_client, write_json, write_said


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def workers(context: click.Context, as_json: bool) -> None:
    """Show every worker process of the last day: where it is, what it does and since when, when it was last heard of.

    A worker that is gone, and that no other replaced, comes first; the exit code is then 1.
    """
    if context.invoked_subcommand:
        return
    standing = with_client(lambda client: client.workers.standing())
    rows = standing.workers
    if as_json:
        alerts = [alert.to_dict() for alert in standing.alerts]
        write_json({"workers": [line.to_dict() for line in rows], "alerts": alerts})
    elif rows:
        write_rows(WORKERS.columns, rows, standing.at)
    else:
        click.echo(WORKERS.none)
    for alert in standing.alerts if rows and not as_json else ():
        click.echo(f"{one_line(alert.message, 300)}\n  fix: {alert.fix}")
    if any(line.state == "gone" for line in rows):
        raise click.exceptions.Exit(NO)


def _ordering(order: WorkerOrder, said: str, summary: str) -> click.Command:

    @click.argument("name")
    @json_option
    def command(name: str, as_json: bool) -> None:
        async def ordered(client: TurnsClient) -> str:
            return await order_worker(client, name, order, by=whoami(), detail="command line")

        whole, at = with_client(ordered), time.time()
        words = f"{one_line(whole)} {said} (with its next heartbeat, within seconds)"
        write_said(as_json, {"worker": whole, "order": order.value, "at": at}, words)

    return click.command(order.value, help=summary)(command)


for _order, _said, _summary in (
    (WorkerOrder.QUIET, "takes no new turn", "Let the worker NAME take no new turn; those it holds go on."),
    (
        WorkerOrder.DRAIN,
        "takes no new turn, and ends once it holds none",
        "Let the worker NAME take no new turn, and end once it holds none. Its supervisor does not start it again.",
    ),
    (
        WorkerOrder.STOP,
        "ends; its turns are handed over after HELIX_SHUTDOWN_SECONDS",
        "End the worker NAME now, as SIGTERM does. Its supervisor does not start it again.",
    ),
    (WorkerOrder.RESUME, "takes turns again", "Let the worker NAME take turns again."),
):
    workers.add_command(_ordering(_order, _said, _summary))


# ``turns pause``, ``resume``: keep turns from starting, for maintenance or while a provider is out.

#: Between two looks of ``--wait``, in seconds.
_LOOK_SECONDS = 0.5


def _moment(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Read an option that is a moment: 14:30 (today, or tomorrow), or 2026-12-24T08:00, local unless it has a zone."""
    if not value:
        return 0.0
    try:
        if re.fullmatch(r"\d{1,2}:\d\d", value):
            now = datetime.now().astimezone()
            hour, minute = map(int, value.split(":"))
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > now else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 14:30 or 2026-12-24T08:00") from None


def _name(what: str, name: str) -> str:
    """An owner is a hash; people name it as `turns keys list` does."""
    return owner_named(name) if what == "owner" else name


@click.command()
@click.argument("what", type=click.Choice(list(WHATS)))
@click.argument("name", default="")
@click.option("--reason", default="", help="Why; chat users read it.")
@click.option("--for", "seconds", callback=span, default="", metavar="SPAN", help="For this long: 90s, 30m, 2h, 1d.")
@click.option("--until", callback=_moment, default="", metavar="TIME", help="Until 14:30, or 2026-12-24T08:00.")
@click.option("--wait", is_flag=True, help="Return when its agents have ended; of the intake: all turns.")
@json_option
def pause(what: str, name: str, reason: str, seconds: float, until: float, wait: bool, as_json: bool) -> None:
    """Keep turns from starting: of the intake, or of the model, queue, key or owner NAME.

    Agents at work finish; other turns wait, and their deadlines with them. They go on by themselves at the end, or at
    `turns resume`. A paused intake refuses new turns (503 with Retry-After) and lets stored ones run.
    """
    if seconds and until:
        raise click.UsageError("--for or --until, not both")
    if wait and what in {"key", "owner"}:
        raise click.UsageError("--wait goes with intake, model and queue")

    async def run(client: TurnsClient) -> Pause:
        begun = Pause(what=what, name=_name(what, name), reason=reason.strip(), until=until, by=whoami())
        begun = await client.pauses.pause(begun, seconds=seconds)
        while wait and await _at_work(client, begun):  # noqa: ASYNC110 (it happens elsewhere)
            await asyncio.sleep(_LOOK_SECONDS)
        return begun

    begun = with_client(run)
    end = f"until {clock_time(begun.until, time.time())}" if begun.until else f"end it: turns resume {begun.title}"
    write_said(as_json, begun.to_dict(), f"paused {begun.title}: {WHATS[what]}; {end}")


async def _at_work(client: TurnsClient, begun: Pause) -> bool:
    """Return whether turns that the pause is about are still worked on; of the intake: have not ended."""
    if begun.what == "intake":
        return bool(await client.lists.unfinished(Search()))
    state = "validating" if begun.name == "check" else "running"
    search = Search(statuses=(state,), model=begun.name if begun.what == "model" else "")
    return bool(await client.lists.unfinished(search))


@click.command()
@click.argument("what", type=click.Choice([*WHATS, LIMIT]), required=False)
@click.argument("name", default="")
@click.option("--all", "everything", is_flag=True, help="End every pause, and close every breaker.")
@json_option
def resume(what: str | None, name: str, everything: bool, as_json: bool) -> None:
    """End a pause, or a service's limit; of a model also its open breaker. Exit code 1: there was none."""
    if everything == bool(what):
        raise click.UsageError("name what to resume, or --all")
    ended: list[str]
    if what:
        there = with_client(lambda client: client.pauses.resume(what, _name(what, name), by=whoami()))
        ended = [f"{what} {name}".rstrip()] if there else []
    else:
        ended = [each.title for each in with_client(lambda client: client.pauses.resume_all(by=whoami()))]
    said = "\n".join(f"resumed: {title}" for title in ended) or "nothing was paused"
    write_said(as_json, {"resumed": ended}, said)
    if not ended and what:
        raise click.exceptions.Exit(NO)


# Words for the agents that a stop waits for, at its beginning.

#: A worker that is silent for longer is not one of those that end now, in seconds.
_FRESH_SECONDS = 10.0


def say_what_it_waits_for(settings: Settings) -> None:
    """Write one line to standard error: how many agents are at work on this machine, and how long they may go on."""
    working = _turns_at_work(settings)
    if working == 0:
        click.echo("stopping: no agent is at work", err=True)
        return
    agents = "agents that are at work" if working is None else f"{number_of(working, 'agent')} at work"
    limit = f"up to {settings.shutdown_seconds:g} s, then their turns go to other workers"
    click.echo(f"stopping: waiting for {agents}, {limit}; Ctrl-C again: at once", err=True)


def say() -> None:
    """Write that line from a separate process, by the settings of the environment."""
    say_what_it_waits_for(load())


def _turns_at_work(settings: Settings) -> int | None:
    """Agents at work on this machine, by what its workers last reported; None when the store does not answer."""
    try:
        reports = asyncio.run(_reports(settings))
    except RedisError:
        return None
    here = socket.gethostname()
    fresh = [each for each in reports if each.host == here and time.time() - each.at < _FRESH_SECONDS]
    return sum(each.slots - each.free for each in fresh if RUN_QUEUE in each.queues)


async def _reports(settings: Settings) -> list[WorkerReport]:
    async with open_store(settings, answer_seconds=1.0) as redis:
        return await written_reports(redis, settings.namespace)

"""``turns workers``: who works where, on what, since when, and who is gone; quiet, drain, stop, resume."""

from __future__ import annotations

import time
from datetime import datetime

import click

from api_client.actions import order_worker
from api_client.client import TurnsClient
from api_client.contract.values.worker_order import WorkerOrder
from api_client.workers.fleet import WorkerLine
from api_client.workers.standing import Standing
from worker.cli.output import json_option, number_of, one_line, write_json, write_table
from worker.cli.turns.actions import whoami
from worker.cli.turns.turn import with_client


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
    if as_json:
        alerts = [alert.to_dict() for alert in standing.alerts]
        write_json({"workers": [line.to_dict() for line in standing.workers], "alerts": alerts})
    else:
        _show(standing)
    if any(line.state == "gone" for line in standing.workers):
        context.exit(1)


def _show(standing: Standing) -> None:
    if not standing.workers:
        click.echo("no worker was heard of within a day: start `turns worker`")
        return
    rows: list[tuple[str, ...]] = [("worker", "state", "pid", "version", "slots free", "since", "last heard", "does")]
    write_table([*rows, *(_row(line, standing.at) for line in standing.workers)])
    for alert in standing.alerts:
        click.echo(f"{one_line(alert.message, 300)}\n  fix: {alert.fix}")


def _row(line: WorkerLine, now: float) -> tuple[str, ...]:
    gone = f"gone for {_span(line.silent_seconds)}" if line.silent_seconds else f"{_span(now - line.heard_at)} ago"
    if line.state == "signed off":
        gone = f"ended {_span(now - line.heard_at)} ago"
    does = "; ".join(f"{each.task} {each.turn_id} for {_span(now - each.since)}" for each in line.doing[:3])
    more = f"; and {number_of(len(line.doing) - 3, 'more turn')}" if len(line.doing) > 3 else ""
    return (
        one_line(line.name),
        line.state + (f": {one_line(line.why, 60)}" if line.why else ""),
        str(line.pid),
        line.version,
        f"{line.free} of {line.slots}",
        f"{datetime.fromtimestamp(line.started_at).astimezone():%Y-%m-%d %H:%M:%S%z}" if line.started_at else "",
        gone,
        does + more or ", ".join(line.queues),
    )


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _ordering(order: WorkerOrder, said: str, summary: str) -> click.Command:
    """A command that orders a worker."""

    @click.argument("name")
    @json_option
    def command(name: str, as_json: bool) -> None:
        async def ordered(client: TurnsClient) -> str:
            return await order_worker(client, name, order, by=whoami(), detail="command line")

        whole, at = with_client(ordered), time.time()
        if as_json:
            write_json({"worker": whole, "order": order.value, "at": at})
        else:
            click.echo(f"{one_line(whole)} {said} (with its next heartbeat, within seconds)")

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

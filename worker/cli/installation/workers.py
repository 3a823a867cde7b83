"""Implement ``turns run worker``: list worker processes, and order them to go quiet, drain, stop or resume."""

from __future__ import annotations

import time

import click

from api_client.client import TurnsClient
from api_client.contract.worker_order import WorkerOrder
from api_client.operator_actions import order_worker
from api_client.resources.workers import WORKERS
from worker.cli import NO
from worker.cli.output import fit_line, json_option, write_json, write_result
from worker.cli.resources.listing import write_rows
from worker.cli.store_access import describe_caller, run_with_client


@click.command("list", epilog="Example: turns worker list")
@json_option
def list_workers(as_json: bool) -> None:
    """Show every worker process of the last day: its host, its work, and its last report.

    Missing workers that were not replaced come first; the exit code is then 1.
    """
    installation = run_with_client(lambda client: client.workers.read_state())
    rows = installation.workers
    if as_json:
        alerts = [alert.to_dict() for alert in installation.alerts]
        write_json({"workers": [line.to_dict() for line in rows], "alerts": alerts})
    elif rows:
        write_rows(WORKERS.columns, rows, installation.at)
    else:
        click.echo(WORKERS.none)
    for alert in installation.alerts if rows and not as_json else ():
        click.echo(f"{fit_line(alert.message, 300)}\n  fix: {alert.fix}")
    if any(line.state == "gone" for line in rows):
        raise click.exceptions.Exit(NO)


def _build_order_command(order: WorkerOrder, said: str, summary: str) -> click.Command:

    @click.argument("name")
    @json_option
    def command(name: str, as_json: bool) -> None:
        async def send_order(client: TurnsClient) -> str:
            return await order_worker(client, name, order, by=describe_caller(), detail="command line")

        whole, at = run_with_client(send_order), time.time()
        words = f"{fit_line(whole)} {said} (with its next heartbeat, within seconds)"
        write_result(as_json, {"worker": whole, "order": order.value, "at": at}, words)

    return click.command(order.value, help=summary, epilog=f"Example: turns worker {order.value} worker-1@web1")(
        command
    )


quiet = _build_order_command(
    WorkerOrder.QUIET, "takes no new turn", "Let the worker NAME take no new turn; those it holds continue."
)
drain = _build_order_command(
    WorkerOrder.DRAIN,
    "takes no new turn, and ends once it holds none",
    "Let the worker NAME take no new turn, and end once it holds none. Its supervisor does not start it again.",
)
stop = _build_order_command(
    WorkerOrder.STOP,
    "ends; its turns are handed over after HELIX_SHUTDOWN_SECONDS",
    "End the worker NAME now, as SIGTERM does. Its supervisor does not start it again.",
)
resume = _build_order_command(WorkerOrder.RESUME, "takes turns again", "Let the worker NAME take turns again.")

"""Implement ``turns run worker close-agent``: stop the idle agent that a worker keeps for a session."""

from __future__ import annotations

import click

from api_client.client import TurnsClient
from worker.cli import NO
from worker.cli.output import fit_line, json_option, write_result
from worker.cli.store_access import describe_caller, run_with_client


@click.command("close-agent", epilog="Example: turns worker close-agent chat-1")
@click.argument("session_id")
@json_option
def close_agent(session_id: str, as_json: bool) -> None:
    """Stop the idle agent that is kept running for a session; the session's next message starts a new agent.

    Exit code 1 if there is none, or it is running a turn.
    """

    async def order_close(client: TurnsClient) -> str:
        async with client.orders.place_order("session close", by=describe_caller(), detail=session_id) as order:
            worker = await client.sessions.close_agent(session_id)
            order.refused = "" if worker else "no worker keeps an idle agent of it"
        return worker

    worker = run_with_client(order_close)
    said = f"{fit_line(worker)} ends it within seconds"
    none = f"no worker keeps an idle agent of session {fit_line(session_id)}"
    write_result(as_json, {"session_id": session_id, "worker": worker}, said if worker else none)
    if not worker:
        raise click.exceptions.Exit(NO)

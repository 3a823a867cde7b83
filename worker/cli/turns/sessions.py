"""Implement ``turns sessions``: close warm agents of a session."""

from __future__ import annotations

import click

from api_client.client import TurnsClient
from worker.cli import NO
from worker.cli.output import json_option, one_line, write_said
from worker.cli.store_access import whoami, with_client


@click.group()
def sessions() -> None:
    """What workers keep for a session; `turns workers` shows it."""


@sessions.command()
@click.argument("session_id")
@json_option
def close(session_id: str, as_json: bool) -> None:
    """End the idle agent that a worker keeps for the session's next message, which then starts a new one.

    Exit code 1: none is kept, or it is at work.
    """

    async def closed(client: TurnsClient) -> str:
        async with client.orders.place("session close", by=whoami(), detail=session_id) as order:
            worker = await client.sessions.close_agent(session_id)
            order.refused = "" if worker else "no worker keeps an idle agent of it"
        return worker

    worker = with_client(closed)
    said = f"{one_line(worker)} ends it within seconds"
    none = f"no worker keeps an idle agent of session {one_line(session_id)}"
    write_said(as_json, {"session_id": session_id, "worker": worker}, said if worker else none)
    if not worker:
        raise click.exceptions.Exit(NO)

"""``turns sessions``: what workers keep for a session beside its turns."""

from __future__ import annotations

import click

from api_client.client import TurnsClient
from worker.cli import NO
from worker.cli.terminal import json_option, one_line, whoami, with_client, write_json


@click.group()
def sessions() -> None:
    """What workers keep for a session; `turns workers` shows it."""


@sessions.command()
@click.argument("session_id")
@json_option
@click.pass_context
def close(context: click.Context, session_id: str, as_json: bool) -> None:
    """End the idle agent that a worker keeps for the session's next message, which then starts a new one.

    Exit code 1: none is kept, or it is at work.
    """

    async def closed(client: TurnsClient) -> str:
        worker = await client.sessions.close_agent(session_id)
        if worker:
            await client.audit.note("session close", by=whoami(), detail=session_id)
        return worker

    worker = with_client(closed)
    if as_json:
        write_json({"session_id": session_id, "worker": worker})
    elif worker:
        click.echo(f"{one_line(worker)} ends it within seconds")
    else:
        click.echo(f"no worker keeps an idle agent of session {one_line(session_id)}")
    if not worker:
        context.exit(NO)

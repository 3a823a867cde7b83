"""Implement ``turns turn dead``: list dead letters, which are turns that killed their workers."""

from __future__ import annotations

from dataclasses import asdict

import click

from api_client.client import TurnsClient
from api_client.contract.turn import Turn
from api_client.turn_export import WorkerDeath, find_deaths
from api_client.workers.reports import read_exits
from worker.cli.output import fit_line, format_time, json_option, write_list
from worker.cli.store_access import run_with_client


@click.command(epilog="Example: turns turn dead")
@json_option
def dead(as_json: bool) -> None:
    """List the dead letters, oldest first, with what each of their workers died of.

    A dead letter is a turn that crashed its workers again and again. It is kept until `turns turn drop` or `turns turn
    replay`. `turns turn watch` shows its events.
    """

    async def read_dead(client: TurnsClient) -> list[tuple[Turn, list[WorkerDeath]]]:
        exits = await read_exits(client.store)
        return [
            (turn, find_deaths((await client.reader.read_outline(turn.turn_id)).events, exits))
            for turn in await client.dead_letters.list_all()
        ]

    turns = run_with_client(read_dead)
    data = [{**turn.to_dict(), "deaths": [asdict(each) for each in died]} for turn, died in turns]
    rows = (
        (
            turn.turn_id,
            format_time(turn.finished_at),
            str(turn.delivery),
            fit_line("; ".join(map(_describe_death, died)), 160),
            fit_line(turn.request.session_id, 40),
            fit_line(turn.request.prompt, 60),
        )
        for turn, died in turns
    )
    head = ("turn", "given up", "deliveries", "died with", "session", "message")
    write_list(as_json, data, "no dead letters", head, rows)


def _describe_death(death: WorkerDeath) -> str:
    return f"{death.worker or 'unknown'} while {death.during}: {death.cause or 'nobody saw why'}"

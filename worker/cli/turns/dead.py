"""Implement ``turns turn dead``: list dead letters, which are turns that killed their workers, and show one."""

from __future__ import annotations

from dataclasses import asdict

import click

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.turn import Turn
from api_client.turn_export import WorkerDeath, find_deaths
from api_client.workers.reports import read_exits
from worker.cli.output import fit_line, format_time, json_option, write_json, write_list
from worker.cli.store_access import run_with_client
from worker.cli.turns.listing import add_turn_argument
from worker.cli.turns.timeline import Timeline


@click.command(epilog="Example: turns turn dead")
@add_turn_argument(required=False)
@json_option
def dead(turn_id: str | None, as_json: bool) -> None:
    """List the dead letters, oldest first, or show all events of the dead letter TURN_ID.

    A dead letter is a turn that crashed its workers again and again. It is kept until `turns turn drop` or `turns turn
    replay`.
    """
    if turn_id:
        _show_history(turn_id, as_json)
    else:
        _list_dead(as_json)


def _list_dead(as_json: bool) -> None:
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


def _show_history(turn_id: str, as_json: bool) -> None:
    async def read_events(client: TurnsClient) -> tuple[list[Event], list[WorkerDeath]]:
        found = [event async for event in client.reader.follow_turn(turn_id) if event is not None]
        return found, find_deaths(found, await read_exits(client.store))

    found, died = run_with_client(read_events)
    if as_json:
        write_json([event.to_dict() for event in found])
        return
    timeline = Timeline()
    for event in found:
        timeline.show_event(event)
    for each in died:
        click.echo(f"delivery {each.delivery} died with {fit_line(_describe_death(each))}")


def _describe_death(death: WorkerDeath) -> str:
    return f"{death.worker or 'unknown'} while {death.during}: {death.cause or 'nobody saw why'}"

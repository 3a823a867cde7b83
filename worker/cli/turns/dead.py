"""Implement ``turns dead``: list and handle dead letters, which are turns that killed their workers."""

from __future__ import annotations

from dataclasses import asdict

import click

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFinished
from api_client.contract.events import Event
from api_client.contract.turn import Outcome, Turn
from api_client.history import WorkerDeath, find_deaths
from api_client.turn_actions.replay import ACTION as REPLAY
from api_client.workers.reports import read_exits
from worker.cli.output import fit_line, format_time, json_option, write_json, write_list
from worker.cli.store_access import run_with_client
from worker.cli.turns.actions import act_on_turn, drop
from worker.cli.turns.listing import add_turn_argument
from worker.cli.turns.timeline import Timeline


@click.group()
def dead() -> None:
    """List, show, replay and drop dead letters: turns that crashed their workers again and again.

    They are kept until they are dropped. `show` prints their history; `replay` submits them again as new turns.
    """


dead.add_command(drop)


@dead.command("list")
@json_option
def list_dead(as_json: bool) -> None:
    """List the dead letters, oldest first."""

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


@dead.command("show")
@add_turn_argument()
@json_option
def show_dead(turn_id: str, as_json: bool) -> None:
    """Show all events of a dead letter."""

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


@dead.command("replay", short_help="Submit a dead letter again.")
@add_turn_argument()
@json_option
def replay_dead(turn_id: str, as_json: bool) -> None:
    """Submit a dead letter again as a new turn, at most once, and remove it from the list."""
    turn = run_with_client(lambda client: client.reader.read_turn(turn_id))
    if turn.outcome is not Outcome.DEAD:
        raise TurnNotFinished(turn_id, "is not a dead letter: `turns replay` replays it")
    act_on_turn(REPLAY, turn_id, as_json)

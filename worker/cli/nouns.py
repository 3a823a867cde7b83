"""Commands that list nouns of operators (``api_client/nouns.py``); ``turns budgets`` and ``turns paused``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from api_client.api_keys import with_names
from api_client.contract.settings import load
from api_client.nouns import BUDGETS, PAUSES, Column, Noun, Sight
from api_client.pauses.pause import clock_time
from worker.cli.output import json_option, moment, one_line, write_json, write_table
from worker.cli.store_access import with_client


def list_of(noun: Noun[Any], name: str, about: str, *, under: str = "") -> click.Command:
    """The command that lists a noun. ``under``: its JSON is an object, with the rows under this name."""

    @json_option
    def listed(as_json: bool) -> None:
        rows, facts = with_client(lambda client: noun.read(client, -1))
        data = [row.to_dict() for row in rows]
        if as_json:
            write_json({**facts, under: data} if under else data)
        elif not rows:
            click.echo(noun.none)
        else:
            write_rows(noun.columns, rows)
            if under:
                click.echo(noun.caption(facts))

    return click.command(name, help=about)(listed)


def write_rows(columns: Sequence[Column[Any]], rows: Sequence[Any], now: float = 0.0) -> None:
    """Rows as a table; ``now`` in seconds since the epoch, 0 for this moment."""
    sight = Sight(now or time.time(), with_names(load().keys_path))
    cells = [tuple(_cell(column, row, sight) for column in columns) for row in rows]
    write_table([tuple(column.head for column in columns), *cells])


def _cell(column: Column[Any], row: Any, sight: Sight) -> str:
    value = column.cell(row, sight)
    if column.kind == "when":
        return moment(value)
    return clock_time(value, sight.now) if column.kind == "clock" else one_line(value, column.most)


budgets = list_of(
    BUDGETS,
    "budgets",
    """Show each budget of HELIX_BUDGETS, what was spent of it today, and when it resets; the most used first.

    A budget that is spent, or set aside for turns at work, refuses new turns: 429 budget_exceeded.
    """,
)
paused = list_of(
    PAUSES,
    "paused",
    "Show the pauses and which breakers are open: why, since when, until when, by whom.",
    under="pauses",
)

"""Builds the commands that list a resource."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from api_client.api_keys import make_owner_namer
from api_client.contract.clock_time import format_clock_time
from api_client.contract.settings import load_settings
from api_client.resources.resource import CellContext, Column, Resource
from worker.cli.output import fit_line, format_time, json_option, write_json, write_table
from worker.cli.store_access import run_with_client


def make_list_command(
    resource: Resource[Any], name: str, about: str, *, example: str, under: str = ""
) -> click.Command:
    """Build the command-line command that lists the rows of a resource.

    ``about`` is the help text, ``example`` the arguments of ``turns`` in it. With ``under``, the JSON is an object with
    the rows under this name; otherwise a list.
    """

    @json_option
    def list_resource(as_json: bool) -> None:
        rows, facts = run_with_client(lambda client: resource.read(client, -1))
        data = [row.to_dict() for row in rows]
        if as_json:
            write_json({**facts, under: data} if under else data)
        elif not rows:
            click.echo(resource.none)
        else:
            write_rows(resource.columns, rows)
            if under:
                click.echo(resource.caption(facts))

    return click.command(name, help=about, epilog=f"Example: turns {example}")(list_resource)


def write_rows(columns: Sequence[Column[Any]], rows: Sequence[Any], now: float = 0.0) -> None:
    """Print the rows of a resource as a table. ``now`` is a Unix time, or 0 for the current time."""
    context = CellContext(now or time.time(), make_owner_namer(load_settings().keys_path))
    cells = [tuple(_format_cell(column, row, context) for column in columns) for row in rows]
    write_table([tuple(column.head for column in columns), *cells])


def _format_cell(column: Column[Any], row: Any, context: CellContext) -> str:
    value = column.cell(row, context)
    if column.kind == "when":
        return format_time(value)
    return format_clock_time(value, context.now) if column.kind == "clock" else fit_line(value, column.most)

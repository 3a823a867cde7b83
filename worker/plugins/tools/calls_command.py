"""Implement ``turns turn calls``: the tool calls of a turn."""

from __future__ import annotations

import click

from api_client.client import TurnsClient
from api_client.contract.tool_call_row import CallRow
from api_client.tools.gateway_calls import GatewayCalls
from worker.cli.output import fit_line, format_time, json_option, write_list
from worker.cli.store_access import run_with_client
from worker.cli.turns.listing import add_turn_argument


@click.command(epilog="Example: turns turn calls last")
@add_turn_argument()
@json_option
def calls(turn_id: str, as_json: bool) -> None:
    """Show the tool calls of a turn, over all its deliveries."""

    async def read_calls(client: TurnsClient) -> list[CallRow]:
        await client.reader.read_turn(turn_id)  # raises TurnNotFound
        return await GatewayCalls(client.store).read_calls(turn_id)

    rows = run_with_client(read_calls)
    data = [row.to_dict() for row in rows]
    write_list(as_json, data, "no tool calls", _TITLES, map(_describe_row, rows))


_TITLES = ("at", "attempt", "delivery", "call", "state", "took", "bytes", "arguments")


def _describe_row(row: CallRow) -> tuple[str, ...]:
    state = f"{row.state.value} by {row.earlier}" if row.earlier else row.state.value
    call, took = f"{row.server}.{row.tool}", f"{row.took_ms} ms" if row.took_ms else ""
    size = str(row.result_bytes or "")
    numbers = str(row.attempt), str(row.delivery)
    return (format_time(row.at), *numbers, call, state, took, size, fit_line(row.arguments))

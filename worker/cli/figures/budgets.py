"""``turns budgets``: what may be spent today, and what was."""

from __future__ import annotations

import time

import click

from api_client.api_keys import with_names
from api_client.contract.settings import load
from api_client.pauses.pause import clock_time
from worker.cli.output import json_option, one_line, write_json, write_table
from worker.cli.turns.turn import with_client


@click.command()
@json_option
def budgets(as_json: bool) -> None:
    """Show each budget of HELIX_BUDGETS, what was spent of it today, and when it resets; the most used first.

    A budget that is spent, or set aside for turns at work, refuses new turns: 429 budget_exceeded.
    """
    found = with_client(lambda client: client.spending.today())
    if as_json:
        write_json([each.to_dict() for each in found])
        return
    if not found:
        click.echo("no budgets: HELIX_BUDGETS is not set")
        return
    now, named = time.time(), with_names(load().keys_path)
    rows: list[tuple[str, ...]] = [("budget", "spent $", "of $", "share", "state", "set aside $", "resets")]
    for each in found:
        spent, limit = (
            f"{each.charged_usd:.4f}",
            f"{each.limit_usd:.{2 if each.limit_usd == round(each.limit_usd, 2) else 4}f}",
        )
        aside, resets = f"{each.set_aside_usd:.4f}", clock_time(each.resets_at, now)
        rows.append((one_line(named(each.scope), 60), spent, limit, f"{each.share:.0%}", each.state, aside, resets))
    write_table(rows)

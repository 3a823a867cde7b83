"""Implement ``turns turn replay``."""

from __future__ import annotations

from typing import Any

import click

from api_client.turn_actions.replay import ACTION, ReplayAction
from worker.cli.text_input import read_text
from worker.cli.turns.actions import action_command, run_action
from worker.cli.turns.listing import complete_model


@action_command(ACTION, "replay --outcome failed --since 1d --dry-run")
@click.option(
    "--as-model",
    default="",
    metavar="NAME",
    help="Ask this model instead of the turn's own.",
    shell_complete=complete_model,
)
@click.option("--message", metavar="TEXT", help="Send this message instead; - reads standard input.")
def replay(turn_id: str | None, as_model: str, message: str | None, **options: Any) -> None:
    """Submit the finished turn TURN_ID again as a new turn, or every finished turn that matches the filters.

    A repeated replay creates no second turn. A dead letter leaves the list. --as-model or --message make it a different
    turn.
    """
    if message is not None and not turn_id:
        raise click.UsageError("--message goes with a single TURN_ID")
    prompt = read_text("-") if message == "-" else message or ""
    if message is not None and not prompt.strip():
        raise click.UsageError("--message: the message is empty")
    run_action(ReplayAction(model=as_model, prompt=prompt), turn_id, **options)

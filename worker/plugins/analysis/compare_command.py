"""Implement ``turns policy compare``: compare two flow versions statistically (ADR-034, A/B)."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from worker.cli.output import json_option, write_json, write_table
from worker.cli.store_access import build_since_option, run_with_client
from worker.cli.turns.listing import iterate_finished_turns
from worker.plugins.analysis.versions import (
    FEWEST,
    FIGURES,
    FigureDifference,
    FinishedTurn,
    MeasuredFigure,
    VersionComparison,
)
from worker.plugins.analysis.versions import compare_versions as compared

_CALLED = {
    "retry": "asked again",
    "fallback": "repaired by fallback",
    "failure": "no accepted answer",
    "seconds": "time of a turn",
    "usd": "cost of a turn",
}


@click.command(epilog="Example: turns policy compare v1 v2 --since 7d")
@click.argument("old")
@click.argument("new")
@build_since_option("7d")
@click.option("--model", default="", help="Only turns of this model.")
@json_option
def compare(old: str, new: str, since: float, model: str, as_json: bool) -> None:
    """Compare the finished turns of two flow versions, OLD and NEW.

    "real" means that equal versions would show such differences in at most one of twenty comparisons. Phases, cancelled
    turns and turns removed by retention are left out.
    """
    if old == new:
        raise click.UsageError("name two different versions, such as v2 v3")

    async def read_turns(client: TurnsClient) -> VersionComparison:
        turns = [
            FinishedTurn(
                session_id=turn.request.session_id,
                flow=turn.labels["flow"],
                outcome=turn.outcome or Outcome.ERROR,
                asked_again=turn.retries > 0,
                seconds=turn.finished_at - turn.created_at,
                usd=turn.cost_used / 1e6,
            )
            async for turn in iterate_finished_turns(client, time.time() - since, model)
            if turn.labels.get("flow") in {old, new}
        ]
        return compared(turns, old, new)

    found = run_with_client(read_turns)
    if as_json:
        write_json(asdict(found))
    else:
        _print_comparison(found)


def _print_comparison(found: VersionComparison) -> None:
    for version, sessions, turns in zip((found.old, found.new), found.sessions, found.turns, strict=True):
        click.echo(f"{version}: {turns} turns of {sessions} sessions")
    click.echo()
    write_table([("", found.old, found.new, "change", "real"), *map(_figure_row, found.figures)])
    click.echo()
    if not found.enough:
        click.echo(f"Too few sessions to say more: {FEWEST} of each version are needed.")
    elif real := [_CALLED[figure.name] for figure in found.figures if figure.real]:
        click.echo(f"{found.new} really differs from {found.old} in: {', '.join(real)}.")
    else:
        click.echo(f"No difference between {found.old} and {found.new} is beyond chance.")


def _figure_row(figure: FigureDifference) -> tuple[str, ...]:
    said = "yes" if figure.real else "no"
    return (
        _CALLED[figure.name],
        *(_format_figure(figure.name, each) for each in (figure.old, figure.new)),
        _format_figure(figure.name, figure.change, sign="+"),
        f"{said} (p {figure.p:.3f}, of {len(FIGURES)})",
    )


def _format_figure(name: str, measured: MeasuredFigure, sign: str = "") -> str:
    low, value, high = (_format_value(name, each, sign) for each in (measured.low, measured.value, measured.high))
    return f"{value} [{low}, {high}]"


def _format_value(name: str, value: float, sign: str) -> str:
    if name == "seconds":
        return f"{value:{sign}.2f} s"
    return f"{value:{sign}.4f} $" if name == "usd" else f"{value:{sign}.1%}"

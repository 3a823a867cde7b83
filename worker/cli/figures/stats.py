"""Implement ``turns stats summary`` and ``turns stats retry-rate``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click

from api_client.client import TurnsClient
from api_client.contract.keys import BUCKETS
from api_client.contract.package_parts import collect_parts
from api_client.figures.statistics import (
    BREAKDOWNS,
    REACTIONS,
    RETRY_BREAKDOWNS,
    Duration,
    RetryRate,
    RuleRow,
    Stats,
    TurnRow,
    ratio,
    zero_reactions,
)
from worker.cli.output import count_noun, fit_line, json_option, write_json, write_table
from worker.cli.store_access import build_since_option, parse_span, run_with_client

_COLUMNS = 5


@click.command("retry-rate", epilog="Example: turns stats retry-rate --since 7d --by validator")
@build_since_option("1h", "How far back: 90s, 30m, 1h, 7d, 2w.")
@click.option("--by", type=click.Choice(RETRY_BREAKDOWNS), help="Break the figures down.")
@click.option("--model", default="", help="Only this model.")
@click.option("--every", type=click.Choice(list(BUCKETS)), help="Show one line for each of these periods.")
@json_option
def retry_rate(since: float, by: str | None, model: str, every: str | None, as_json: bool) -> None:
    """Show the share of finished turns that were retried after validation at least once.

    By validator or code: the share of validated attempts that were rejected. Attempts lost to crashes do not count.
    """
    try:
        rate = run_with_client(lambda client: client.figures.read_retry_rate(since, by or "", every or "", model))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        write_json(rate.to_dict())
        return
    click.echo(f"{format_percent(rate.rate)} of {count_noun(rate.turns, 'finished turn')} asked again ({rate.retried})")
    if by and rate.rows:
        click.echo()
        headings = (
            ("rejected", "of validated", "rate") if by in {"validator", "code"} else ("again", "of turns", "rate")
        )
        rows = [(fit_line(r.name, 60), str(r.rejected), str(r.validated), format_percent(r.rate)) for r in rate.rows]
        write_table([(by, *headings), *rows])
    if rate.pieces:
        click.echo()
        write_table(_history_rows(rate))
        if still := sum(not _has_data(piece) for piece in rate.pieces):
            click.echo(f"left out: {count_noun(still, str(every))} without a turn")


def _history_rows(rate: RetryRate) -> list[tuple[str, ...]]:
    names = [row.name for row in rate.rows[:_COLUMNS]]
    head = ("from", "turns", "again", "rate", *(fit_line(name, 30) for name in names))
    lines = [head]
    for piece in filter(_has_data, rate.pieces):
        rows = {row.name: row for row in piece.rows}
        when = f"{datetime.fromtimestamp(piece.start).astimezone():%Y-%m-%d %H:%M%z}"
        whole = (when, str(piece.turns), str(piece.retried), format_percent(piece.rate))
        shares = [row if (row := rows.get(name)) and row.validated else None for name in names]
        lines.append((*whole, *(f"{format_percent(row.rate)} of {row.validated}" if row else "-" for row in shares)))
    return lines


def _has_data(piece: RetryRate) -> bool:
    return bool(piece.turns or any(row.validated for row in piece.rows))


def format_percent(rate: float | None) -> str:
    """Format a rate between 0 and 1 as a percentage, and None as ``-``."""
    return "-" if rate is None else f"{rate:.1%}"


_TURNS_HEAD = ("turns", "passed", "again", "repaired", "gave up", "errors", "cancelled")
_USED_HEAD = ("runs", "rejected", "tokens", "failed", "cost $", "failed $")
_REACTIONS_HEAD = ("asked again", "repaired", *zero_reactions(), "none of these")
_RULES_HEAD = ("rejected", "of validated", "rate", *_REACTIONS_HEAD, "gave up")


@click.command(epilog="Example: turns stats summary --since 7d --by model")
@build_since_option("24h")
@click.option("--by", type=click.Choice(BREAKDOWNS), help="Break the figures down.")
@click.option(
    "--against",
    callback=parse_span,
    default="",
    metavar="SPAN",
    help="Compare with the period this much earlier, such as 7d.",
)
@json_option
def summary(since: float, by: str | None, against: float, as_json: bool) -> None:
    """Show how many turns ended in each way, and how many tokens and dollars agents used.

    Turns and agent runs count when they end. "failed" tokens and money belong to runs whose answer was rejected.
    """

    async def read_stats(client: TurnsClient) -> list[Stats]:
        found = [await client.figures.read_stats(since, by or "")]
        return [*found, await client.figures.read_stats(since, by or "", ago_seconds=against)] if against else found

    found = run_with_client(read_stats)
    if as_json:
        earlier = {"against": found[1].to_dict()} if against else {}
        write_json({**found[0].to_dict(), **earlier})
        return
    for number, each in enumerate(found):
        if number:
            click.echo("\nthe same time, earlier:\n")
        _print_stats(each)


def _print_stats(stats: Stats) -> None:
    total = stats.total
    click.echo(
        f"{count_noun(total.turns, 'turn')} finished: {format_percent(ratio(total.passed, total.turns))} passed, "
        f"{format_percent(ratio(total.asked_again, total.turns))} were asked again; "
        f"{stats.lost} of {stats.started} agent runs and validations lost to crashes"
    )
    rules = [row for row in stats.rows if isinstance(row, RuleRow)]
    turns = [row for row in stats.rows if isinstance(row, TurnRow)] or [total]
    click.echo()
    if stats.by in {"validator", "code", "validator_model"}:
        write_table(
            [
                (stats.by.replace("_", " / "), *_RULES_HEAD),
                *((fit_line(row.name, 60), *_rule_cells(row)) for row in rules),
            ]
        )
    else:
        used = stats.by in {"", "model", "owner", "key"}
        head = (stats.by, *_TURNS_HEAD, *(_USED_HEAD if used else ()))
        write_table(
            [
                head,
                *((fit_line(row.name, 60), *_turn_cells(row), *(_usage_cells(row) if used else ())) for row in turns),
            ]
        )
    for describe in (_describe_phases, *collect_parts("worker.cli.figures.figure_lines", "describe_figures")):
        for line in describe(stats):
            click.echo(f"\n{line}")
    click.echo()
    write_table([("took", "times", "mean", "p50", "p95"), *map(_duration_row, stats.durations)])


def _describe_phases(stats: Stats) -> Iterator[str]:
    row = stats.phases
    if row.verified:
        attempts = "" if row.attempts is None else f" ({row.attempts:.1f} attempts for each)"
        others = "".join(f"{row.others[name]} {words}, " for name, words in REACTIONS.values())
        yield (
            f"phases: {row.verified} attempts verified, {format_percent(row.rate)} passed{attempts}; "
            f"{row.asked_again} asked again, {others}{row.failed} failed"
        )


def _turn_cells(row: TurnRow) -> tuple[str, ...]:
    return tuple(
        map(str, (row.turns, row.passed, row.asked_again, row.repaired, row.gave_up, row.errors, row.cancelled))
    )


def _usage_cells(row: TurnRow) -> tuple[str, ...]:
    numbers = (row.runs, row.rejected, row.tokens, row.failed_tokens)
    return (*map(str, numbers), f"{row.cost_usd:.4f}", f"{row.failed_cost_usd:.4f}")


def _rule_cells(row: RuleRow) -> tuple[str, ...]:
    followed = (row.retried, row.fallback, *row.others.values(), row.failed, row.gave_up)
    return (str(row.rejected), str(row.validated), format_percent(row.rate), *map(str, followed))


def _duration_row(duration: Duration) -> tuple[str, ...]:
    times = (duration.mean, duration.quantile(0.5), duration.quantile(0.95))
    return (duration.name, str(duration.count), *("-" if each is None else f"{each:.2f} s" for each in times))

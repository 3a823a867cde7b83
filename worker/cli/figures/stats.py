"""``turns stats``: how turns ended, what validators and codes did, what it cost, how long it took."""

from __future__ import annotations

from collections.abc import Iterator

import click

from api_client.client import TurnsClient
from api_client.figures.stats import BREAKDOWNS, Duration, RuleRow, Stats, TurnRow
from worker.cli.asking import span, with_client
from worker.cli.figures.rates import percent
from worker.cli.output import json_option, number_of, one_line, write_json, write_table

_TURNS_HEAD = ("turns", "passed", "again", "repaired", "gave up", "errors", "cancelled")
_USED_HEAD = ("runs", "rejected", "tokens", "failed", "cost $", "failed $")
_RULES_HEAD = ("rejected", "of judged", "rate", "asked again", "repaired", "escalated", "none of these", "gave up")


@click.command()
@click.option("--since", callback=span, default="24h", metavar="SPAN", show_default=True, help="How far back.")
@click.option("--by", type=click.Choice(BREAKDOWNS), help="Break it down.")
@click.option("--against", callback=span, default="", metavar="SPAN", help="Beside the same time so much earlier: 7d.")
@json_option
def stats(since: float, by: str | None, against: float, as_json: bool) -> None:
    """How turns ended, and what agents used: read from counters that equal the turns' logs.

    A turn counts when it ends, an agent run when it ends, failed ones included. "failed" tokens and money are those of
    runs whose answer was not accepted.
    """

    async def read(client: TurnsClient) -> list[Stats]:
        found = [await client.figures.stats(since, by or "")]
        return [*found, await client.figures.stats(since, by or "", ago_seconds=against)] if against else found

    found = with_client(read)
    if as_json:
        earlier = {"against": found[1].to_dict()} if against else {}
        write_json({**found[0].to_dict(), **earlier})
        return
    for number, each in enumerate(found):
        if number:
            click.echo("\nthe same time, earlier:\n")
        _write(each)


def _write(stats: Stats) -> None:
    total = stats.total
    click.echo(
        f"{number_of(total.turns, 'turn')} finished: {percent(_share(total.passed, total.turns))} passed, "
        f"{percent(_share(total.asked_again, total.turns))} were asked again; "
        f"{stats.lost} of {stats.started} agent runs and judgements lost to crashes"
    )
    rules = [row for row in stats.rows if isinstance(row, RuleRow)]
    turns = [row for row in stats.rows if isinstance(row, TurnRow)] or [total]
    click.echo()
    if stats.by in {"validator", "code", "validator_model"}:
        write_table(
            [(stats.by.replace("_", " / "), *_RULES_HEAD), *((one_line(row.name, 60), *_rule(row)) for row in rules)]
        )
    else:
        used = stats.by in {"", "model", "owner", "key"}
        head = (stats.by, *_TURNS_HEAD, *(_USED_HEAD if used else ()))
        write_table([head, *((one_line(row.name, 60), *_turns(row), *(_used(row) if used else ())) for row in turns)])
    for line in _of_phases(stats):
        click.echo(f"\n{line}")
    click.echo()
    write_table([("took", "times", "mean", "p50", "p95"), *map(_took, stats.durations)])


def _of_phases(stats: Stats) -> Iterator[str]:
    """How phases were verified and what was handed on; nothing where there was nothing of it."""
    row = stats.phases
    if row.judged:
        attempts = "" if row.attempts is None else f" ({row.attempts:.1f} attempts for each)"
        yield (
            f"phases: {row.judged} attempts verified, {percent(row.rate)} passed{attempts}; "
            f"{row.asked_again} asked again, {row.escalated} handed on, {row.failed} failed"
        )
    if any(stats.escalated.values()):
        decided = ", ".join(f"{kind} {count}" for kind, count in stats.decided.items() if count) or "nothing yet"
        model, person = stats.escalated["model"], stats.escalated["person"]
        yield f"handed on: {model} to another model, {person} to a person; decided: {decided}"


def _turns(row: TurnRow) -> tuple[str, ...]:
    return tuple(
        map(str, (row.turns, row.passed, row.asked_again, row.repaired, row.gave_up, row.errors, row.cancelled))
    )


def _used(row: TurnRow) -> tuple[str, ...]:
    numbers = (row.runs, row.rejected, row.tokens, row.failed_tokens)
    return (*map(str, numbers), f"{row.cost_usd:.4f}", f"{row.failed_cost_usd:.4f}")


def _rule(row: RuleRow) -> tuple[str, ...]:
    followed = (row.retried, row.fallback, row.escalated, row.failed, row.gave_up)
    return (str(row.rejected), str(row.judged), percent(row.rate), *map(str, followed))


def _took(duration: Duration) -> tuple[str, ...]:
    times = (duration.mean, duration.quantile(0.5), duration.quantile(0.95))
    return (duration.name, str(duration.count), *("-" if each is None else f"{each:.2f} s" for each in times))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

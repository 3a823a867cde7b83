"""``turns stats`` and ``retry-rate``: how turns ended, what it cost, how often agents were asked again, and why."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import click

from api_client.client import TurnsClient
from api_client.contract.issues import StoreUnavailable
from api_client.contract.keys import BUCKETS
from api_client.contract.turn import Turn
from api_client.figures import BREAKDOWNS, RETRY_BREAKDOWNS, Duration, RetryRate, RuleRow, Share, Stats, TurnRow, share
from api_client.figures.metrics import SPANS
from api_client.overview import Overview, overview
from api_client.store import heed_cancellation
from api_client.workers.fleet import OwnerLine
from worker.cli.terminal import (
    json_option,
    number_of,
    one_line,
    since_option,
    span,
    with_client,
    write_json,
    write_table,
)
from worker.cli.turns.timeline import BAD, BOLD, DIM, GOOD, PLAIN, WARN, Line, styled

#: Columns of a course of time: what was rejected most.
_COLUMNS = 5


@click.command("retry-rate")
@since_option("1h", "How far back: 90s, 30m, 1h, 7d, 2w.")
@click.option("--by", type=click.Choice(RETRY_BREAKDOWNS), help="Break it down.")
@click.option("--model", default="", help="Of this model alone.")
@click.option("--every", type=click.Choice(list(BUCKETS)), help="Show how it went: a line for each.")
@json_option
def retry_rate(since: float, by: str | None, model: str, every: str | None, as_json: bool) -> None:
    """Turns that had at least one validation retry, divided by finished turns.

    By validator or code: rejected attempts divided by validated attempts. What was lost to crashes does not count.
    """
    try:
        rate = with_client(lambda client: client.figures.retry_rate(since, by or "", every or "", model))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        write_json(rate.to_dict())
        return
    click.echo(f"{percent(rate.rate)} of {number_of(rate.turns, 'finished turn')} asked again ({rate.retried})")
    if by and rate.rows:
        click.echo()
        headings = ("rejected", "of judged", "rate") if by in {"validator", "code"} else ("again", "of turns", "rate")
        rows = [(one_line(r.name, 60), str(r.rejected), str(r.validated), percent(r.rate)) for r in rate.rows]
        write_table([(by, *headings), *rows])
    if rate.pieces:
        click.echo()
        write_table(_course(rate))
        if still := sum(not _counts(piece) for piece in rate.pieces):
            click.echo(f"left out: {number_of(still, str(every))} without a turn")


def _course(rate: RetryRate) -> list[tuple[str, ...]]:
    """A line for each piece of the time, and a column for each of the rows that count most."""
    names = [row.name for row in rate.rows[:_COLUMNS]]
    head = ("from", "turns", "again", "rate", *(one_line(name, 30) for name in names))
    lines = [head]
    for piece in filter(_counts, rate.pieces):
        rows = {row.name: row for row in piece.rows}
        when = f"{datetime.fromtimestamp(piece.start).astimezone():%Y-%m-%d %H:%M%z}"
        whole = (when, str(piece.turns), str(piece.retried), percent(piece.rate))
        lines.append((*whole, *(_cell(rows.get(name)) for name in names)))
    return lines


def _counts(piece: RetryRate) -> bool:
    """Return whether a turn finished, or an answer was judged, in this piece of the time."""
    return bool(piece.turns or any(row.validated for row in piece.rows))


def _cell(row: Share | None) -> str:
    return f"{percent(row.rate)} of {row.validated}" if row and row.validated else "-"


def percent(rate: float | None) -> str:
    """A share as people read it."""
    return "-" if rate is None else f"{rate:.1%}"


_TURNS_HEAD = ("turns", "passed", "again", "repaired", "gave up", "errors", "cancelled")
_USED_HEAD = ("runs", "rejected", "tokens", "failed", "cost $", "failed $")
_RULES_HEAD = ("rejected", "of judged", "rate", "asked again", "repaired", "escalated", "none of these", "gave up")


@click.command()
@since_option("24h")
@click.option("--by", type=click.Choice(BREAKDOWNS), help="Break it down.")
@click.option("--against", callback=span, default="", metavar="SPAN", help="Beside the same time so much earlier: 7d.")
@json_option
def stats(since: float, by: str | None, against: float, as_json: bool) -> None:
    """Show how turns ended and what agents used, from counters that equal the turns' logs.

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
        f"{number_of(total.turns, 'turn')} finished: {percent(share(total.passed, total.turns))} passed, "
        f"{percent(share(total.asked_again, total.turns))} were asked again; "
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
    """Yield how phases were verified and what was handed on; nothing where there was nothing of it."""
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


# ``turns top``: what runs now and how it goes, in a terminal: the overview page's facts, read over again.

#: Another screen without a cursor, and back; to the first line; to the end of a line; to the end of the screen.
_ENTER, _LEAVE, _HOME, _REST_OF_LINE, _REST = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)
_ROWS = 60


@click.command()
@click.option("--span", type=click.Choice(list(SPANS)), default="1h", show_default=True, help="Time the rates cover.")
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once and end; so does a pipe.")
@json_option
def top(span: str, every: float, once: bool, as_json: bool) -> None:
    """Show what runs and since when, which turns wait, how turns end, and which rule makes agents repeat themselves.

    Ctrl-C ends it. With --json each look is one JSON text on a line.
    """

    async def look(client: TurnsClient) -> None:
        if as_json or once or not sys.stdout.isatty():
            while True:
                seen = await overview(client, span, rows=_ROWS)
                if as_json:
                    write_json(seen.to_dict())
                else:
                    click.echo("\n".join(line.text for line in frame(seen, 120, _ROWS)))
                if once or not as_json:
                    return
                heed_cancellation()
                await asyncio.sleep(every)
        with _screen():
            while True:
                await _draw(client, span)
                heed_cancellation()
                await asyncio.sleep(every)

    with_client(look)


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


async def _draw(client: TurnsClient, span: str) -> None:
    size = shutil.get_terminal_size()
    try:
        lines = frame(await overview(client, span, rows=_ROWS), size.columns, size.lines - 1)
    except StoreUnavailable as error:
        lines = [Line(f"{time.strftime('%H:%M:%S')}  {error}; trying again", BAD)]
    sys.stdout.write(_HOME + "".join(f"{styled(line)}{_REST_OF_LINE}\n" for line in lines) + _REST)
    sys.stdout.flush()


def frame(seen: Overview, width: int, height: int) -> list[Line]:
    """Return what the terminal shows: ``height`` lines at most, none wider than ``width``. Pure."""
    total, span = seen.figures.whole.total, seen.figures.span
    waiting = f"{seen.states['queued']} waiting"
    if seen.oldest_waiting:
        waiting += f" ({seen.could_run} could run, oldest {_span(seen.at - seen.oldest_waiting)})"
    clock = time.strftime("%H:%M:%S", time.localtime(seen.at))
    head = [
        Line(
            f"{clock}  {seen.working} at work  {waiting}  {_workers(seen)}",
            BOLD,
        ),
        Line(
            f"last {span}: {total.turns} finished  {percent(seen.retry_rate)} asked again  "
            + "  ".join(f"{count} {outcome}" for outcome, count in seen.figures.outcomes.items())
        ),
        Line(
            f"{number_of(seen.dead_count, 'dead letter')}: turns dead list" if seen.dead_count else "no dead letters",
            BAD if seen.dead_count else DIM,
        ),
    ]
    if seen.parked_count:
        head.append(Line(f"{seen.parked_count} waiting for a person: turns inbox list", WARN))
    head += [Line(f"{each.message}: {each.fix}", WARN if each.severity == "warning" else BAD) for each in seen.alerts]
    head += [
        Line(f"{number_of(each.count, 'turn')}, {_span(seen.at - each.since)}: {each.wait.words()}", DIM)
        for each in seen.waits
    ]
    rules = [
        Line(f"  {row.name:<18} {percent(row.rate):>6}  {row.rejected} of {row.judged} answers rejected")
        for row in seen.figures.rules
    ]
    latest = [_ended(turn) for turn in seen.latest[:5]]
    owners = [_owner(each) for each in seen.owners] if len(seen.owners) > 1 else []
    room = height - len(head) - len(rules) - len(latest) - len(owners) - 6 - 2 * bool(owners)
    running = [_running(turn, seen) for turn in seen.longest[: max(1, room)]]
    blocks = [
        (head, ""),
        (owners, "OWNERS"),
        (running, "AT WORK, LONGEST FIRST"),
        (rules, "REJECTED BY RULE"),
        (latest, "LAST FINISHED"),
    ]
    lines: list[Line] = []
    for block, title in blocks:
        if block:
            lines += [Line(""), Line(title, DIM)] if title else []
            lines += block
    return [
        line if len(line.text) <= width else line._replace(text=line.text[: width - 1] + "…") for line in lines[:height]
    ]


def _workers(seen: Overview) -> str:
    return f"{number_of(seen.fleet.agents, 'worker')}, {seen.fleet.free} of {seen.fleet.slots} slots free"


def _running(turn: Turn, seen: Overview) -> Line:
    started = seen.attempt_starts.get(turn.turn_id, 0.0)
    attempt = f"attempt {turn.attempt}/{turn.max_attempts}"
    state = "lost" if turn.turn_id in seen.lost else "stopping" if turn.stop else turn.state.value
    age, agent = _span(seen.at - turn.created_at), _span(seen.at - started) if started else ""
    text = f"  {age:>8}  {state:<10}  {attempt:<12} {agent:>8}  {turn.turn_id}  {one_line(turn.request.prompt, 60)}"
    return Line(text, WARN if turn.attempt > 1 else PLAIN)


def _owner(each: OwnerLine) -> Line:
    share = f"weight {each.weight}" + (f", {each.at_once} at once" if each.at_once else "")
    return Line(f"  {one_line(each.name, 40):<40}  {each.working:>4} at work  {each.waiting:>6} waiting  {share}")


def _ended(turn: Turn) -> Line:
    outcome = turn.outcome.value if turn.outcome else ""
    took = _span(turn.finished_at - turn.created_at)
    text = f"  {took:>8}  {outcome:<18}  {turn.turn_id}  {one_line(turn.request.prompt, 60)}"
    return Line(text, GOOD if turn.outcome and turn.outcome.success else BAD)


def _span(seconds: float) -> str:
    """A duration in few letters: 4.2s, 41s, 3m20s, 2h05m."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"

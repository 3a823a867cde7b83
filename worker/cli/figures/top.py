"""Implement ``turns stats top``: the facts of the overview page, refreshed in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Iterator

import click

from api_client.client import TurnsClient
from api_client.contract.clock_time import format_duration
from api_client.contract.decision import LIST_COMMAND
from api_client.contract.errors import StoreUnavailable
from api_client.contract.turn import Turn
from api_client.figures.figures import SPANS
from api_client.index.turn_row import describe_status
from api_client.overview import Overview, read_overview
from api_client.store import heed_cancellation
from api_client.workers.fleet import OwnerRow
from worker.cli.figures.stats import format_percent
from worker.cli.output import count_noun, fit_line, json_option, write_json
from worker.cli.store_access import run_with_client
from worker.cli.turns.timeline import BAD, BOLD, DIM, GOOD, PLAIN, WARN, Line, style_line

#: Control sequences: enter and leave the alternate screen; move home; clear to the end of the line and of the screen.
_ENTER, _LEAVE, _HOME, _REST_OF_LINE, _REST = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)
_PRINTED_WIDTH = 240
_ROWS = 60


@click.command(epilog="Example: turns stats top --once")
@click.option("--span", type=click.Choice(list(SPANS)), default="1h", show_default=True, help="Period of the rates.")
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between refreshes."
)
@click.option("--once", is_flag=True, help="Print one frame and exit, as in a pipe.")
@json_option
def top(span: str, every: float, once: bool, as_json: bool) -> None:
    """Show running and waiting turns, latest outcomes, and the rules that cause most retries.

    Ctrl-C ends it. With --json each refresh is one line of JSON.
    """

    async def show_overview(client: TurnsClient) -> None:
        if as_json or once or not sys.stdout.isatty():
            while True:
                seen = await read_overview(client, span, rows=_ROWS)
                if as_json:
                    write_json(seen.to_dict())
                else:
                    click.echo("\n".join(line.text for line in render_frame(seen, _PRINTED_WIDTH, _ROWS)))
                if once or not as_json:
                    return
                heed_cancellation()
                await asyncio.sleep(every)
        with _alternate_screen():
            while True:
                await _draw_overview(client, span)
                heed_cancellation()
                await asyncio.sleep(every)

    run_with_client(show_overview)


@contextlib.contextmanager
def _alternate_screen() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


async def _draw_overview(client: TurnsClient, span: str) -> None:
    size = shutil.get_terminal_size()
    try:
        lines = render_frame(await read_overview(client, span, rows=_ROWS), size.columns, size.lines - 1)
    except StoreUnavailable as error:
        lines = [Line(f"{time.strftime('%H:%M:%S')}  {error}; trying again", BAD)]
    sys.stdout.write(_HOME + "".join(f"{style_line(line)}{_REST_OF_LINE}\n" for line in lines) + _REST)
    sys.stdout.flush()


def render_frame(seen: Overview, width: int, height: int) -> list[Line]:
    """Render the overview page for a terminal with ``height`` lines of ``width`` characters."""
    total, span = seen.figures.whole.total, seen.figures.span
    waiting = f"{seen.states['queued']} waiting"
    if seen.oldest_waiting:
        waiting += f" ({seen.could_run} could run, oldest {format_duration(seen.at - seen.oldest_waiting)})"
    clock, workers = time.strftime("%H:%M:%S", time.localtime(seen.at)), count_noun(seen.fleet.agents, "worker")
    slots = f"{seen.fleet.free} of {seen.fleet.slots} slots free"
    head = [
        Line(f"{clock}  {seen.working} at work  {waiting}  {workers}, {slots}", BOLD),
        Line(
            f"last {span}: {total.turns} finished  {format_percent(seen.retry_rate)} asked again  "
            + "  ".join(f"{count} {outcome}" for outcome, count in seen.figures.outcomes.items())
        ),
        Line(
            f"{count_noun(seen.dead_count, 'dead letter')}: turns turn dead" if seen.dead_count else "no dead letters",
            BAD if seen.dead_count else DIM,
        ),
    ]
    if seen.suspended_count:
        head.append(Line(f"{seen.suspended_count} waiting for a person: {LIST_COMMAND}", WARN))
    head += [Line(f"{each.message}: {each.fix}", WARN if each.severity == "warning" else BAD) for each in seen.alerts]
    head += [
        Line(f"{count_noun(each.count, 'turn')}, {format_duration(seen.at - each.since)}: {each.wait.words()}", DIM)
        for each in seen.waits
    ]
    rules = [
        Line(f"  {row.name:<18} {format_percent(row.rate):>6}  {row.rejected} of {row.validated} answers rejected")
        for row in seen.figures.rules
    ]
    latest = [_ended_line(turn) for turn in seen.latest[:5]]
    owners = [_owner_line(each) for each in seen.owners] if len(seen.owners) > 1 else []
    room = height - len(head) - len(rules) - len(latest) - len(owners) - 6 - 2 * bool(owners)
    running = [_running_line(turn, seen) for turn in seen.longest[: max(1, room)]]
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


def _running_line(turn: Turn, seen: Overview) -> Line:
    started = seen.attempt_starts.get(turn.turn_id, 0.0)
    attempt = f"attempt {turn.attempt}/{turn.max_attempts}"
    state = "lost" if turn.turn_id in seen.lost else describe_status(turn)
    age, agent = format_duration(seen.at - turn.created_at), format_duration(seen.at - started) if started else ""
    text = f"  {age:>11}  {state:<10}  {attempt:<12} {agent:>11}  {turn.turn_id}  {fit_line(turn.request.prompt, 60)}"
    return Line(text, WARN if turn.attempt > 1 else PLAIN)


def _owner_line(each: OwnerRow) -> Line:
    share = f"weight {each.weight}" + (f", {each.at_once} at once" if each.at_once else "")
    return Line(f"  {fit_line(each.name, 40):<40}  {each.working:>4} at work  {each.waiting:>6} waiting  {share}")


def _ended_line(turn: Turn) -> Line:
    outcome = turn.outcome.value if turn.outcome else ""
    took = format_duration(turn.finished_at - turn.created_at)
    text = f"  {took:>11}  {outcome:<18}  {turn.turn_id}  {fit_line(turn.request.prompt, 60)}"
    return Line(text, GOOD if turn.outcome and turn.outcome.success else BAD)

"""Implement ``turns turn list``, the argument TURN_ID (an id, its beginning, or ``last``) and the filter options."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, TypeVar

import click

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import HelixError
from api_client.contract.owners import parse_owner
from api_client.contract.settings import load_settings, require_store
from api_client.contract.turn import Turn, TurnState
from api_client.contract.turn_labels import LISTED, listed_labels
from api_client.index.search import SORTS, STATUSES, Cursor, Page, Search
from api_client.index.turn_lookup import find_turn, may_abbreviate_turn
from api_client.index.turn_row import build_turn_row, describe_status
from api_client.workers.reason import Wait
from worker.cli.output import fit_line, format_time, json_option, write_json, write_table
from worker.cli.store_access import parse_span, run_with_client, run_with_settings

#: Most recent turns considered when a shell completes an id.
_COMPLETED = 200
Command = TypeVar("Command", bound=Callable[..., Any])


def add_turn_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Add the argument TURN_ID to a command, which also accepts the beginning of an id or ``last``."""
    return click.argument("turn_id", required=required, callback=_resolve_turn_id, shell_complete=_complete_turn_id)


def _complete_turn_id(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    with contextlib.suppress(HelixError, OSError):
        page = run_with_settings(
            require_store(load_settings()), lambda client: client.lists.read_page(Search(), count=_COMPLETED)
        )
        return [turn.turn_id for turn in page.turns if turn.turn_id.startswith(begun)]
    return []


def _resolve_turn_id(context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is None or context.resilient_parsing or not may_abbreviate_turn(text):
        return text
    return run_with_settings(require_store(load_settings()), lambda client: find_turn(client.lists, text))


def complete_model(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the configured models whose names begin with the typed text, for shell completion."""
    with contextlib.suppress(HelixError, OSError):
        return [name for name in load_settings().models if name.startswith(begun)]
    return []


def filter_options(statuses: Iterable[str] = STATUSES) -> Callable[[Command], Command]:
    """Add the filter options to a command that accepts ``**filters`` for ``build_search``.

    ``statuses`` are the states and outcomes that may be filtered; without them the option is left out.
    """
    known = list(statuses)
    options = [
        click.option("--model", default="", help="Only turns of this model.", shell_complete=complete_model),
        *(click.option(f"--{name}", default="", help=each.filter_help) for name, each in LISTED.items()),
        click.option("--session", "session_id", default="", help="Only turns of this session."),
        click.option("--owner", default="", help="Only turns of this owner, by name or by hash."),
        click.option("--rule", default="", help="Only turns with an answer that broke this rule, or with this code."),
        click.option("--text", default="", help="Only turns whose message contains this text, ignoring case."),
        click.option("--since", callback=parse_span, metavar="SPAN", help="Only turns of the last 90s, 30m, 7d, 2w."),
        click.option(
            "--until",
            callback=parse_span,
            metavar="SPAN",
            help="Only turns that ended (or began) before this long ago.",
        ),
        click.option("--lost", is_flag=True, help="Only turns that a worker died or froze with."),
    ]
    if known:
        names, help_ = ("--status", "--state", "--outcome"), "Only in this state, or of this outcome; may be repeated."
        options.insert(0, click.option(*names, "statuses", type=click.Choice(known), multiple=True, help=help_))

    def add_options(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


def build_search(*, since: float | None, until: float | None, **filters: Any) -> Search:
    """Build a search from the values of the filter options."""
    now = time.time()
    filters["owner"] = parse_owner(filters["owner"])
    filters["labels"] = {name: value for name in LISTED if (value := filters.pop(name))}
    return Search(since=now - since if since else 0.0, until=now - until if until else 0.0, **filters)


_OWNER_WIDTH = 20
_PAGE = 50


async def iterate_finished_turns(client: TurnsClient, since: float, model: str = "") -> AsyncGenerator[Turn]:
    """Yield chat turns that finished after ``since`` (Unix time), newest first, without answers."""
    async for chats in _iterate_pages(client, since, model):
        for turn in chats:
            yield turn


async def iterate_finished_chats(
    client: TurnsClient, since: float, model: str = ""
) -> AsyncGenerator[tuple[Turn, list[AttemptRecord]]]:
    """Yield chat turns that finished after ``since``, newest first, each with its attempts."""
    async for chats in _iterate_pages(client, since, model):
        for each in zip(chats, await client.lists.read_attempts(chats), strict=True):
            yield each


async def _iterate_pages(client: TurnsClient, since: float, model: str) -> AsyncGenerator[list[Turn]]:
    after: Cursor | None = None
    search = Search(statuses=("finished",), model=model, since=since)
    while True:
        page = await client.lists.read_page(search, after=after, count=_PAGE)
        yield [turn for turn in page.turns if not turn.request.work]
        if page.next is None:
            return
        after = page.next


def _parse_cursor(_context: click.Context, _parameter: click.Parameter, text: str) -> Cursor | None:
    try:
        return Cursor.parse(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("list", epilog="Example: turns turn list --outcome failed --since 8h")
@filter_options()
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Sort order.")
@click.option(
    "--last", "count", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Most turns to list."
)
@click.option(
    "--cursor", "after", default="", callback=_parse_cursor, help="Continue after this position (`next` of --json)."
)
@json_option
def list_turns(count: int, after: Cursor | None, as_json: bool, **filters: Any) -> None:
    """List turns: unfinished turns first, then finished turns, newest first.

    Several filters must all match. `turns turn list --outcome failed --since 8h` shows what failed last night.
    """
    search = build_search(**filters)

    async def read_page(client: TurnsClient) -> tuple[Page, dict[str, Wait]]:
        page = await _read_turns(client, search, after, count)
        return page, await client.workers.explain_waits(page.turns)

    page, waits = run_with_client(read_page)
    if as_json:
        lines = [build_turn_row(turn, waits.get(turn.turn_id)) for turn in page.turns]
        write_json({"turns": lines, "next": str(page.next) if page.next else None})
        return
    if not page.turns:
        click.echo("no turn fits")
        return
    rows: list[tuple[str, ...]] = [("turn", "status", "when", "took", "attempts", "model", "owner", *LISTED, "message")]
    write_table([*rows, *(_turn_row(turn, waits.get(turn.turn_id)) for turn in page.turns)])
    if page.next:
        click.echo(f"more: --cursor {page.next}", err=True)


async def _read_turns(client: TurnsClient, search: Search, after: Cursor | None, count: int) -> Page:
    found: list[Turn] = []
    while True:
        page = await client.lists.read_page(search, after=after, count=count - len(found))
        found += page.turns
        if page.next is None or len(found) == count:
            return Page(turns=tuple(found), next=page.next)
        after = page.next


def _turn_row(turn: Turn, wait: Wait | None) -> tuple[str, ...]:
    status = describe_status(turn)
    if wait and turn.state is not TurnState.SUSPENDED:
        status += f": {fit_line(wait.words(public=True), 80)}"
    took = f"{turn.finished_at - turn.created_at:.1f} s" if turn.finished_at else ""
    return (
        turn.turn_id,
        status,
        format_time(turn.finished_at or turn.created_at),
        took,
        f"{turn.attempt}/{turn.max_attempts}",
        fit_line(turn.request.model, 24),
        fit_line(turn.request.shown_owner, _OWNER_WIDTH),
        *(fit_line(value, 16) or "-" for value in listed_labels(turn.labels).values()),
        fit_line(turn.request.prompt, 60),
    )

"""Implement ``turns cancel``, ``replay`` and ``drop``."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import click

from api_client.actions import (
    ACTIONS,
    ActionResult,
    ReplayChange,
    act_on_all,
    carry_out_action,
    count_by_status,
    select_targets,
)
from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.turn import Turn
from api_client.index.search import STATUSES, FoundTurn
from worker.cli import NO
from worker.cli.output import count_noun, fit_line, json_option, write_json, write_table
from worker.cli.store_access import describe_caller, run_with_client
from worker.cli.text_input import read_text
from worker.cli.turns.listing import add_turn_argument, build_search, complete_model, filter_options

_PAST = {"cancel": "cancelled", "replay": "replayed", "drop": "dropped"}
_STATUSES = {"cancel": STATUSES["unfinished"], "replay": ("success", "unsuccessful", *STATUSES["finished"]), "drop": ()}


def act_on_turn(action: str, turn_id: str, as_json: bool, change: ReplayChange = ReplayChange()) -> None:  # noqa: B008
    """Cancel, replay or drop one turn and print the result. Exit with code 1 if the action was not possible."""

    async def act_and_read(client: TurnsClient) -> tuple[ActionResult, Turn]:
        done = await carry_out_action(client, action, turn_id, by=describe_caller(), change=change)
        return done, await client.reader.read_turn(turn_id)

    done, turn = run_with_client(act_and_read)
    if as_json and action == "cancel":
        write_json(turn.to_dict())
    elif as_json:
        write_json({"turn_id": done.new_turn_id, "replay_of": turn_id} if done.new_turn_id else _action_dict(done))
    elif done.said == "stopping" and turn.worker:
        click.echo(f"stopping, worker {fit_line(turn.worker)}")
    else:
        click.echo(done.new_turn_id or (f"dropped {turn_id}" if action == "drop" else done.said))
    if not done.done:
        raise click.exceptions.Exit(NO)


def _action_dict(done: ActionResult) -> dict[str, Any]:
    return {"turn_id": done.turn_id, "done": done.done, "said": done.said, "new_turn_id": done.new_turn_id}


def _filter_options(action: str) -> Callable[[Callable[..., None]], click.Command]:
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        add_turn_argument(required=False),
        filter_options(_STATUSES[action]),
        click.option("--all", "everything", is_flag=True, help=f"All {ACTIONS[action]}."),
        click.option("--dry-run", is_flag=True, help="Count only; change nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        json_option,
    ]

    def decorate(command: Callable[..., None]) -> click.Command:
        for option in reversed(options):
            command = option(command)
        return click.command()(command)

    return decorate


@_filter_options("cancel")
def cancel(turn_id: str | None, **options: Any) -> None:
    """Cancel the turn TURN_ID, or every unfinished turn that matches the filters.

    A finished turn stays as it is (exit code 1). Several filters must all match; a repeated filter matches any.
    """
    _run_action("cancel", turn_id, **options)


@_filter_options("replay")
@click.option(
    "--as-model",
    default="",
    metavar="NAME",
    help="Ask this model instead of the turn's own.",
    shell_complete=complete_model,
)
@click.option("--message", default="", metavar="TEXT", help="Send this message instead; - reads standard input.")
def replay(turn_id: str | None, as_model: str, message: str, **options: Any) -> None:
    """Submit the finished turn TURN_ID again as a new turn, or every finished turn that matches the filters.

    A repeated replay creates no second turn. A dead letter leaves the list. --as-model or --message make it a different
    turn. To count only: `turns replay --outcome dead --since 1d --dry-run`.
    """
    if message and not turn_id:
        raise click.UsageError("--message goes with a single TURN_ID")
    prompt = read_text("-") if message == "-" else message
    if message and not prompt.strip():
        raise click.UsageError("--message: the message is empty")
    _run_action("replay", turn_id, change=ReplayChange(model=as_model, prompt=prompt), **options)


@_filter_options("drop")
def drop(turn_id: str | None, **options: Any) -> None:
    """Remove the dead letter TURN_ID from the list, or every dead letter that matches the filters.

    Its history stays readable until its retention ends.
    """
    _run_action("drop", turn_id, **options)


def _run_action(
    action: str,
    turn_id: str | None,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    change: ReplayChange = ReplayChange(),  # noqa: B008 - it cannot be changed
    **filters: Any,
) -> None:
    search = build_search(**filters)
    if turn_id:
        if not search.empty or everything or dry_run:
            raise click.UsageError("name one turn, or filters, not both")
        act_on_turn(action, turn_id, as_json, change)
        return
    if search.empty and not everything:
        raise click.UsageError(f"name a turn, a filter, or --all for all {ACTIONS[action]}")
    found = run_with_client(lambda client: select_targets(client, action, search))
    if dry_run or not found:
        _show_counts(action, found, as_json, dry_run=dry_run)
        return
    if not yes:
        _confirm_action(action, found, as_json)
    _act_on_all(action, found, as_json, detail=str(search) or "all", change=change)


def _confirm_action(action: str, found: list[FoundTurn], as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise click.UsageError(f"{len(found)} turns match: add --yes to {action} them, or --dry-run to count them")
    _show_counts(action, found, as_json=False, dry_run=True)
    click.confirm(f"{action} {count_noun(len(found), 'turn')}?", abort=True)


def _show_counts(action: str, found: list[FoundTurn], as_json: bool, *, dry_run: bool) -> None:
    rows = count_by_status(found)
    if as_json:
        write_json({"action": action, "dry_run": dry_run, "matched": len(found), "counts": rows, "turns": []})
        return
    if rows:
        write_table([("turns", "what", "model"), *((str(r["turns"]), r["status"], fit_line(r["model"])) for r in rows)])
    click.echo(f"{count_noun(len(found), 'turn')} would be {_PAST[action]}" if found else f"no {ACTIONS[action]} match")


def _act_on_all(action: str, found: list[FoundTurn], as_json: bool, detail: str, change: ReplayChange) -> None:
    bulk, done = secrets.token_hex(4), list[ActionResult]()

    async def run(client: TurnsClient) -> None:
        acting = act_on_all(client, action, found, by=describe_caller(), bulk=bulk, detail=detail, change=change)
        async with aclosing(acting) as results:
            async for result in results:
                done.append(result)
                if not as_json:
                    click.echo(f"{result.turn_id}  {fit_line(result.said)}  {result.new_turn_id}".rstrip())

    try:
        run_with_client(run)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error.reason}; {len(done)} of {len(found)} turns are done, run it again for the rest"
        ) from error
    passed_over, before = sum(not result.done for result in done), sum(result.before for result in done)
    if as_json:
        data = {
            "action": action,
            "dry_run": False,
            "matched": len(found),
            "counts": count_by_status(found),
            "bulk": bulk,
        }
        data |= {"new": len(done) - before - passed_over} if action == "replay" else {}
        write_json({**data, "turns": [_action_dict(result) for result in done]})
    else:
        left = (f", {before} were before" if before else "") + (f", {passed_over} passed over" if passed_over else "")
        new = count_noun(len(done) - passed_over - before, "turn")
        click.echo(f"{new} {_PAST[action]}{left}   (turns audit: bulk {bulk})")
    if passed_over:
        raise click.exceptions.Exit(NO)

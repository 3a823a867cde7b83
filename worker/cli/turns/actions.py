"""Implement ``turns turn cancel`` and ``turns turn drop``, and what commands of all actions on turns share."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.turn import Turn
from api_client.index.search import FoundTurn
from api_client.operator_actions import (
    ActionResult,
    TurnAction,
    act_on_all,
    carry_out_action,
    count_by_status,
    select_targets,
)
from api_client.turn_actions.cancel import ACTION as CANCEL
from api_client.turn_actions.drop import ACTION as DROP
from worker.cli import NO
from worker.cli.output import count_noun, fit_line, json_option, write_json, write_table
from worker.cli.store_access import describe_caller, run_with_client
from worker.cli.turns.listing import add_turn_argument, build_search, filter_options


def act_on_turn(action: TurnAction, turn_id: str, as_json: bool) -> None:
    """Apply an action to one turn and print the result. Exit with code 1 if the action was not possible."""

    async def act_and_read(client: TurnsClient) -> tuple[ActionResult, Turn]:
        done = await carry_out_action(client, action, turn_id, by=describe_caller())
        return done, await client.reader.read_turn(turn_id)

    done, turn = run_with_client(act_and_read)
    if as_json:
        write_json(action.result_data(done, turn))
    elif done.said == "stopping" and turn.worker:
        click.echo(f"stopping, worker {fit_line(turn.worker)}")
    else:
        click.echo(done.new_turn_id or (f"{done.said} {turn_id}" if action == DROP else done.said))
    if not done.done:
        raise click.exceptions.Exit(NO)


def action_command(action: TurnAction, example: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command for an action on one turn, or on all turns that match filters."""
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        add_turn_argument(required=False),
        filter_options(action.statuses),
        click.option("--all", "everything", is_flag=True, help=f"All {action.targets}."),
        click.option("--dry-run", is_flag=True, help="Count only; change nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
        json_option,
    ]

    def decorate(command: Callable[..., None]) -> click.Command:
        for option in reversed(options):
            command = option(command)
        return click.command(epilog=f"Example: turns turn {example}")(command)

    return decorate


@action_command(CANCEL, "cancel last")
def cancel(turn_id: str | None, **options: Any) -> None:
    """Cancel the turn TURN_ID, or every unfinished turn that matches the filters.

    A finished turn stays as it is (exit code 1). Several filters must all match; a repeated filter matches any.
    """
    run_action(CANCEL, turn_id, **options)


@action_command(DROP, "drop --all --dry-run")
def drop(turn_id: str | None, **options: Any) -> None:
    """Remove the dead letter TURN_ID from the list, or every dead letter that matches the filters.

    Its history stays readable until its retention ends.
    """
    run_action(DROP, turn_id, **options)


def run_action(
    action: TurnAction,
    turn_id: str | None,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Apply an action to one turn, or to all turns that match filters, after a confirmation."""
    search = build_search(**filters)
    if turn_id:
        if not search.empty or everything or dry_run:
            raise click.UsageError("name one turn, or filters, not both")
        act_on_turn(action, turn_id, as_json)
        return
    if search.empty and not everything:
        raise click.UsageError(f"name a turn, a filter, or --all for all {action.targets}")
    found = run_with_client(lambda client: select_targets(client, action, search))
    if dry_run or not found:
        _show_counts(action, found, as_json, dry_run=dry_run)
        return
    if not yes:
        _confirm_action(action, found, as_json)
    _act_on_all(action, found, as_json, detail=str(search) or "all")


def _confirm_action(action: TurnAction, found: list[FoundTurn], as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise click.UsageError(f"{len(found)} turns match: add --yes to {action.name} them, or --dry-run to count them")
    _show_counts(action, found, as_json=False, dry_run=True)
    click.confirm(f"{action.name} {count_noun(len(found), 'turn')}?", abort=True)


def _show_counts(action: TurnAction, found: list[FoundTurn], as_json: bool, *, dry_run: bool) -> None:
    rows = count_by_status(found)
    if as_json:
        write_json({"action": action.name, "dry_run": dry_run, "matched": len(found), "counts": rows, "turns": []})
        return
    if rows:
        write_table([("turns", "what", "model"), *((str(r["turns"]), r["status"], fit_line(r["model"])) for r in rows)])
    click.echo(f"{count_noun(len(found), 'turn')} would be {action.past}" if found else f"no {action.targets} match")


def _act_on_all(action: TurnAction, found: list[FoundTurn], as_json: bool, detail: str) -> None:
    bulk, done = secrets.token_hex(4), list[ActionResult]()

    async def run(client: TurnsClient) -> None:
        acting = act_on_all(client, action, found, by=describe_caller(), bulk=bulk, detail=detail)
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
            "action": action.name,
            "dry_run": False,
            "matched": len(found),
            "counts": count_by_status(found),
            "bulk": bulk,
        }
        data |= {"new": len(done) - before - passed_over} if action.submits else {}
        write_json({**data, "turns": [result.to_dict() for result in done]})
    else:
        left = (f", {before} already were" if before else "") + (f", {passed_over} skipped" if passed_over else "")
        new = count_noun(len(done) - passed_over - before, "turn")
        click.echo(f"{new} {action.past}{left}   (turns data audit: bulk {bulk})")
    if passed_over:
        raise click.exceptions.Exit(NO)

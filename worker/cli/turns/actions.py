"""What people do to turns: ``turns cancel``, ``replay``, ``drop``, ``audit``, ``dead``, ``inbox``."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import click

from api_client.api_keys import with_names
from api_client.client import ACTIONS, Change, Death, Done, TurnsClient, act, act_on_all, chosen, counted, deaths
from api_client.contract.events import Event
from api_client.contract.issues import BadRequest, NotFinished, StoreUnavailable, read_issues
from api_client.contract.policy import DecisionKind
from api_client.contract.record import AttemptRecord
from api_client.contract.settings import load
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.index import STATUSES, Found
from api_client.turns.inbox import proposal
from api_client.workers.reports import read_exits
from worker.cli import NO
from worker.cli.terminal import (
    json_option,
    moment,
    number_of,
    one_line,
    read_text,
    safe,
    since_option,
    whoami,
    with_client,
    write_json,
    write_list,
    write_said,
    write_table,
)
from worker.cli.turns.listing import filter_options, offered_models, search_of, turn_argument
from worker.cli.turns.timeline import Timeline, issue_lines

_PAST = {"cancel": "cancelled", "replay": "replayed", "drop": "dropped"}
#: What each action's filter may ask for: it is done to nothing else.
_STATUSES = {
    "cancel": STATUSES["unfinished"],
    "replay": ("success", "unsuccessful", *STATUSES["finished"]),
    "drop": (),
}


def act_on_one(action: str, turn_id: str, as_json: bool, change: Change = Change()) -> None:  # noqa: B008
    """Cancel, replay or drop one turn; exit code 1 when it was finished before."""

    async def both(client: TurnsClient) -> tuple[Done, Turn]:
        done = await act(client, action, turn_id, by=whoami(), change=change)
        return done, await client.reader.get(turn_id)

    done, turn = with_client(both)
    if as_json and action == "cancel":
        write_json(turn.to_dict())
    elif as_json:
        write_json({"turn_id": done.new_turn_id, "replay_of": turn_id} if done.new_turn_id else _json(done))
    elif done.said == "stopping" and turn.worker:
        click.echo(f"stopping, worker {one_line(turn.worker)}")
    else:
        click.echo(done.new_turn_id or (f"dropped {turn_id}" if action == "drop" else done.said))
    if not done.done:
        raise click.exceptions.Exit(NO)


def _json(done: Done) -> dict[str, Any]:
    return {"turn_id": done.turn_id, "done": done.done, "said": done.said, "new_turn_id": done.new_turn_id}


def _filters(action: str) -> Callable[[Callable[..., None]], click.Command]:
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        turn_argument(required=False),
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


@_filters("cancel")
def cancel(turn_id: str | None, **options: Any) -> None:
    """Stop the turn TURN_ID, whatever it is doing; or every unfinished turn that the filters name.

    A finished turn stays as it is (exit code 1). Several filters must all match; a repeated one matches any.
    """
    _carry_out("cancel", turn_id, **options)


@_filters("replay")
@click.option(
    "--as-model",
    default="",
    metavar="NAME",
    help="Ask this model instead of the turn's own.",
    shell_complete=offered_models,
)
@click.option("--message", default="", metavar="TEXT", help="Send this message instead; - reads standard input.")
def replay(turn_id: str | None, as_model: str, message: str, **options: Any) -> None:
    """Hand the finished turn TURN_ID in again, as a new turn; or every finished turn that the filters name.

    Twice makes one new turn. A dead letter leaves the list. `turns replay --outcome dead --since 1d --dry-run` counts.
    With --as-model or --message the new turn is another one than the plain replay; its `replay_of` is the same.
    """
    if message and not turn_id:
        raise click.UsageError("--message goes with a single TURN_ID")
    prompt = read_text("-") if message == "-" else message
    if message and not prompt.strip():
        raise click.UsageError("--message: the message is empty")
    _carry_out("replay", turn_id, change=Change(model=as_model, prompt=prompt), **options)


@_filters("drop")
def drop(turn_id: str | None, **options: Any) -> None:
    """Take the dead letter TURN_ID off the list; or every one that the filters name.

    Its history stays readable for as long as any finished turn's.
    """
    _carry_out("drop", turn_id, **options)


def _carry_out(
    action: str,
    turn_id: str | None,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    change: Change = Change(),  # noqa: B008 - it cannot be changed
    **filters: Any,
) -> None:
    search = search_of(**filters)
    if turn_id:
        if not search.empty or everything or dry_run:
            raise click.UsageError("name one turn, or filters, not both")
        act_on_one(action, turn_id, as_json, change)
        return
    if search.empty and not everything:
        raise click.UsageError(f"name a turn, a filter, or --all for all {ACTIONS[action]}")
    found = with_client(lambda client: chosen(client, action, search))
    if dry_run or not found:
        _show_counts(action, found, as_json, dry_run=dry_run)
        return
    if not yes:
        _confirm(action, found, as_json)
    _act_on_all(action, found, as_json, detail=str(search) or "all", change=change)


def _confirm(action: str, found: list[Found], as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise click.UsageError(f"{len(found)} turns match: add --yes to {action} them, or --dry-run to count them")
    _show_counts(action, found, as_json=False, dry_run=True)
    click.confirm(f"{action} {number_of(len(found), 'turn')}?", abort=True)


def _show_counts(action: str, found: list[Found], as_json: bool, *, dry_run: bool) -> None:
    rows = counted(found)
    if as_json:
        write_json({"action": action, "dry_run": dry_run, "matched": len(found), "counts": rows, "turns": []})
        return
    if rows:
        write_table([("turns", "what", "model"), *((str(r["turns"]), r["status"], one_line(r["model"])) for r in rows)])
    click.echo(f"{number_of(len(found), 'turn')} would be {_PAST[action]}" if found else f"no {ACTIONS[action]} match")


def _act_on_all(action: str, found: list[Found], as_json: bool, detail: str, change: Change) -> None:
    bulk, done = secrets.token_hex(4), list[Done]()

    async def run(client: TurnsClient) -> None:
        acting = act_on_all(client, action, found, by=whoami(), bulk=bulk, detail=detail, change=change)
        async with aclosing(acting) as results:
            async for result in results:
                done.append(result)
                if not as_json:
                    click.echo(f"{result.turn_id}  {one_line(result.said)}  {result.new_turn_id}".rstrip())

    try:
        with_client(run)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error.reason}; {len(done)} of {len(found)} turns are done, run it again for the rest"
        ) from error
    passed_over, before = sum(not result.done for result in done), sum(result.before for result in done)
    if as_json:
        data = {"action": action, "dry_run": False, "matched": len(found), "counts": counted(found), "bulk": bulk}
        data |= {"new": len(done) - before - passed_over} if action == "replay" else {}
        write_json({**data, "turns": [_json(result) for result in done]})
    else:
        left = (f", {before} were before" if before else "") + (f", {passed_over} passed over" if passed_over else "")
        new = number_of(len(done) - passed_over - before, "turn")
        click.echo(f"{new} {_PAST[action]}{left}   (turns audit: bulk {bulk})")
    if passed_over:
        raise click.exceptions.Exit(NO)


@click.command()
@since_option("7d", "90s, 30m, 1h, 7d, 2w.")
@click.option("--turn", "turn_id", default="", help="Only about this turn.")
@json_option
def audit(since: float, turn_id: str, as_json: bool) -> None:
    """Show who cancelled, replayed, dropped or decided what, and when; newest last.

    A line is written before its action; one that was refused says so. For its result: `turns show TURN_ID`.
    """
    lines = with_client(lambda client: client.audit.read(since=time.time() - since, turn_id=turn_id))
    named = with_names(load().keys_path)
    head = ("when", "who", "what", "turn", "bulk", "asked for", "result")
    rows = (
        (
            moment(line.at),
            one_line(named(line.by), 40),
            *(line.action, line.turn_id, line.bulk, one_line(line.detail, 60)),
            f"refused: {one_line(line.refused, 80)}" if line.refused else "",
        )
        for line in lines
    )
    none = f"nobody did anything{f' to {one_line(turn_id)}' if turn_id else ''} in this time"
    write_list(as_json, [asdict(line) for line in lines], none, head, rows)


# ``turns dead``: turns that took down their workers too often, and what to do about them.


@click.group()
def dead() -> None:
    """Dead letters: turns that took down their workers again and again, the last time alone.

    They stay until they are dropped. `show` tells their whole history; `replay` submits them again, as a new turn.
    """


dead.add_command(drop)


@dead.command("list")
@json_option
def list_dead(as_json: bool) -> None:
    """List the dead letters, oldest first."""

    async def read(client: TurnsClient) -> list[tuple[Turn, list[Death]]]:
        exits = await read_exits(client.store)
        return [
            (turn, deaths((await client.reader.outline(turn.turn_id)).events, exits))
            for turn in await client.dead_letters.all()
        ]

    turns = with_client(read)
    data = [{**turn.to_dict(), "deaths": [asdict(each) for each in died]} for turn, died in turns]
    rows = (
        (
            turn.turn_id,
            moment(turn.finished_at),
            str(turn.delivery),
            one_line("; ".join(map(_words_of, died)), 160),
            one_line(turn.request.session_id, 40),
            one_line(turn.request.prompt, 60),
        )
        for turn, died in turns
    )
    head = ("turn", "given up", "deliveries", "died with", "session", "message")
    write_list(as_json, data, "no dead letters", head, rows)


@dead.command("show")
@turn_argument()
@json_option
def show_dead(turn_id: str, as_json: bool) -> None:
    """Show the whole history of a dead letter, event by event."""

    async def events(client: TurnsClient) -> tuple[list[Event], list[Death]]:
        found = [event async for event in client.reader.follow(turn_id) if event is not None]
        return found, deaths(found, await read_exits(client.store))

    found, died = with_client(events)
    if as_json:
        write_json([event.to_dict() for event in found])
        return
    timeline = Timeline()
    for event in found:
        timeline.show(event)
    for each in died:
        click.echo(f"delivery {each.delivery} died with {one_line(_words_of(each))}")


def _words_of(death: Death) -> str:
    """A death on one line: who died, at what, of what."""
    return f"{death.worker or 'unknown'} while {death.during}: {death.cause or 'nobody saw why'}"


@dead.command("replay", short_help="Submit a dead letter again.")
@turn_argument()
@json_option
def replay_dead(turn_id: str, as_json: bool) -> None:
    """Submit a dead letter again as a new turn, and take it off the list. Twice makes one new turn."""
    turn = with_client(lambda client: client.reader.get(turn_id))
    if turn.outcome is not Outcome.DEAD:
        raise NotFinished(turn_id, "is not a dead letter: `turns replay` replays it")
    act_on_one("replay", turn_id, as_json)


# ``turns inbox``: turns that wait for a person, and what the person decides.


@click.group()
def inbox() -> None:
    """Turns that were handed to a person: every attempt failed its checks.

    Nothing happens to them until somebody decides, or their time-out does. `show` shows what there is to decide.
    """


@inbox.command("list")
@json_option
def list_inbox(as_json: bool) -> None:
    """List the turns that wait, the longest waiting first."""
    turns = with_client(lambda client: client.inbox.parked())
    rows = (
        (turn.turn_id, moment(turn.parked_at), moment(turn.decide_by), turn.decide_default, one_line(_what(turn), 60))
        for turn in turns
    )
    data, head = [turn.to_dict() for turn in turns], ("turn", "since", "until", "then", "what")
    write_list(as_json, data, "nothing waits for a decision", head, rows)


def _what(turn: Turn) -> str:
    phase, asked = turn.request.phase, turn.asked
    if asked and turn.state is TurnState.PARKED:
        return f"may the agent do this? {asked.tool} (turns inbox show)"
    return f"phase {phase['id']} of {turn.request.directory}" if phase else turn.request.prompt


@inbox.command(short_help="Show what there is to decide.")
@turn_argument()
@json_option
def show(turn_id: str, as_json: bool) -> None:
    """Show what there is to decide on: the result an approval accepts, and what was found in it."""

    async def both(client: TurnsClient) -> tuple[Turn, list[AttemptRecord]]:
        return await client.reader.get(turn_id), await client.reader.attempts(turn_id)

    turn, attempts = with_client(both)
    found = proposal(turn, attempts)
    if as_json:
        write_json({**turn.to_dict(), **found})
        return
    rows: list[tuple[str, ...]] = [
        ("turn", turn.turn_id),
        ("state", turn.state.value),
        ("what", one_line(_what(turn))),
    ]
    if turn.decide_by:
        rows.append(("until", f"{moment(turn.decide_by)}, then {turn.decide_default}"))
    if turn.decision:
        rows.append(("decided", f"{turn.decision.kind} by {one_line(turn.decision.who)}"))
    if (asked := turn.asked) and turn.state is TurnState.PARKED:
        rows += [("who answers", asked.who), ("tool", one_line(asked.tool))]
        rows += [(one_line(name), safe(value)) for name, value in asked.arguments.items()]
    write_table(rows)
    if best := found["proposal"]:
        timeline = Timeline()
        click.echo(f"\nattempt {best['attempt']}:")
        for line in issue_lines(read_issues(best["issues"])):
            timeline.write(line)
        if best["files"]:
            click.echo(f"\nfiles: {safe(best['files'])}")
        click.echo(f"\n{safe(best['text'])}")


@inbox.command()
@turn_argument()
@click.option("--note", default="", help="Why; kept in the turn's record.")
@json_option
def approve(turn_id: str, note: str, as_json: bool) -> None:
    """Accept the result as `show` shows it. The turn ends as passed_by_human."""
    _decide(turn_id, DecisionKind.APPROVE, as_json, note=note)


@inbox.command(short_help="Accept your own text or files.")
@turn_argument()
@click.option(
    "--text",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File with the answer that counts; - is stdin.",
)
@click.option("--note", default="", help="Why; kept in the turn's record.")
@json_option
def edit(turn_id: str, file: str | None, note: str, as_json: bool) -> None:
    """Accept your own result: the text of a file, or, of a phase, its files as you left them.

    `turns inbox show` says where the files of a phase are. The turn ends as passed_by_human.
    """
    text = read_text(file) if file is not None else ""
    if file is not None and not text.strip():
        raise BadRequest(f"{file} is empty: nothing would be the answer", param="text")
    try:
        _decide(turn_id, DecisionKind.EDIT, as_json, note=note, text=text)
    except BadRequest as error:
        if error.param == "text" and file is None:  # a chat's turn, whose answer is a text
            raise click.UsageError("which text counts instead? add --text FILE; - reads standard input") from None
        raise


@inbox.command()
@turn_argument()
@click.option("--note", required=True, help="What the agent reads.")
@json_option
def retry(turn_id: str, note: str, as_json: bool) -> None:
    """Have the agent try again, with your note. If it fails again, the turn comes back here."""
    _decide(turn_id, DecisionKind.RETRY, as_json, note=note)


@inbox.command()
@turn_argument()
@click.option("--note", default="", help="Why; the turn's user reads it.")
@json_option
def reject(turn_id: str, note: str, as_json: bool) -> None:
    """Accept nothing. The turn ends as failed."""
    _decide(turn_id, DecisionKind.REJECT, as_json, note=note)


def _decide(turn_id: str, kind: DecisionKind, as_json: bool, *, note: str, text: str = "") -> None:
    turn = with_client(lambda client: client.inbox.decide(turn_id, kind, by=whoami(), note=note, text=text))
    write_said(as_json, turn.to_dict(), f"{kind.value}: {turn_id} goes on")

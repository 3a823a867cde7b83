"""Implement ``turns inbox``: list turns that await a decision, and decide."""

from __future__ import annotations

import click

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import DecisionKind
from api_client.contract.errors import BadRequest
from api_client.contract.issue import read_issues
from api_client.contract.turn import Turn, TurnState
from api_client.contract.work import find_work
from api_client.interruptions.registry import show_question
from api_client.turns.proposal import build_proposal
from worker.cli.output import (
    fit_line,
    format_time,
    json_option,
    strip_control,
    write_json,
    write_list,
    write_result,
    write_table,
)
from worker.cli.store_access import describe_caller, run_with_client
from worker.cli.text_input import read_text
from worker.cli.turns.listing import add_turn_argument
from worker.cli.turns.timeline import Timeline, format_issues


@click.group()
def inbox() -> None:
    """List and decide turns that await a person's decision after all their attempts were rejected.

    They wait until somebody decides or their time-out passes. `show` prints what to decide.
    """


@inbox.command("list", epilog="Example: turns inbox list")
@json_option
def list_inbox(as_json: bool) -> None:
    """List the turns that await a decision, longest waiting first."""
    turns = run_with_client(lambda client: client.inbox.list_suspended())
    rows = (
        (
            turn.turn_id,
            format_time(turn.suspended_at),
            format_time(turn.decide_by),
            asked.silence,
            fit_line(_describe_turn(turn), 60),
        )
        for turn in turns
        if (asked := turn.interruption)
    )
    data, head = [turn.to_dict() for turn in turns], ("turn", "since", "until", "then", "what")
    write_list(as_json, data, "nothing waits for a decision", head, rows)


def _describe_turn(turn: Turn) -> str:
    if turn.interruption and turn.state is TurnState.SUSPENDED and (said := show_question(turn.interruption).summary):
        return said
    work = find_work(turn.request)
    return f"{work.name if turn.request.work else ''} {work.describe_request(turn.request)}".strip()


@inbox.command(epilog="Example: turns inbox show last")
@add_turn_argument()
@json_option
def show(turn_id: str, as_json: bool) -> None:
    """Show the result that an approval would accept, with its issues."""

    async def read_turn(client: TurnsClient) -> tuple[Turn, list[AttemptRecord]]:
        return await client.reader.read_turn(turn_id), await client.reader.read_attempts(turn_id)

    turn, attempts = run_with_client(read_turn)
    found = build_proposal(turn, attempts)
    if as_json:
        write_json({**turn.to_dict(), **found})
        return
    rows: list[tuple[str, ...]] = [
        ("turn", turn.turn_id),
        ("state", turn.state.value),
        ("what", fit_line(_describe_turn(turn))),
    ]
    asked = turn.interruption if turn.state is TurnState.SUSPENDED else None
    if asked:
        rows.append(("until", f"{format_time(turn.decide_by)}, then {asked.silence}"))
    if turn.decision:
        rows.append(("decided", f"{turn.decision.kind} by {fit_line(turn.decision.who)}"))
    if asked:
        question = show_question(asked)
        rows += [("who answers", asked.who), ("answers", ", ".join(each.decision for each in question.direct_choices))]
        rows += [(fit_line(name), strip_control(value)) for name, value in question.facts]
    write_table(rows)
    if best := found["proposal"]:
        timeline = Timeline()
        click.echo(f"\nattempt {best['attempt']}:")
        for line in format_issues(read_issues(best["issues"])):
            timeline.write_line(line)
        if best["files"]:
            click.echo(f"\nfiles: {strip_control(best['files'])}")
        click.echo(f"\n{strip_control(best['text'])}")


@inbox.command(epilog='Example: turns inbox approve last --note "Checked the sources."')
@add_turn_argument()
@click.option("--note", default="", help="Reason, kept in the turn's record.")
@json_option
def approve(turn_id: str, note: str, as_json: bool) -> None:
    """Accept the result that `show` prints. The turn ends as passed_by_human."""
    _submit_decision(turn_id, DecisionKind.APPROVE, as_json, note=note)


@inbox.command(epilog="Example: turns inbox edit last --text answer.md")
@add_turn_argument()
@click.option(
    "--text",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File with the answer that counts; - is stdin.",
)
@click.option("--note", default="", help="Reason, kept in the turn's record.")
@json_option
def edit(turn_id: str, file: str | None, note: str, as_json: bool) -> None:
    """Accept your own version of the result: the text of a file, or the files that you edited.

    `turns inbox show` says where such files are. The turn ends as passed_by_human.
    """
    text = read_text(file) if file is not None else ""
    if file is not None and not text.strip():
        raise BadRequest(f"{file} is empty: nothing would be the answer", param="text")
    try:
        _submit_decision(turn_id, DecisionKind.EDIT, as_json, note=note, text=text)
    except BadRequest as error:
        if error.param == "text" and file is None:  # the turn of a chat, whose answer is a text
            raise click.UsageError("which text counts instead? add --text FILE; - reads standard input") from None
        raise


@inbox.command(epilog='Example: turns inbox retry last --note "Name the alternatives too."')
@add_turn_argument()
@click.option("--note", required=True, help="Note, which the agent reads.")
@json_option
def retry(turn_id: str, note: str, as_json: bool) -> None:
    """Let the agent try again with your note. If it fails again, the turn comes back here."""
    _submit_decision(turn_id, DecisionKind.RETRY, as_json, note=note)


@inbox.command(epilog='Example: turns inbox reject last --note "We decided against this."')
@add_turn_argument()
@click.option("--note", default="", help="Reason, which the turn's user reads.")
@json_option
def reject(turn_id: str, note: str, as_json: bool) -> None:
    """Reject the result. The turn ends as failed."""
    _submit_decision(turn_id, DecisionKind.REJECT, as_json, note=note)


def _submit_decision(turn_id: str, kind: DecisionKind, as_json: bool, *, note: str, text: str = "") -> None:
    turn = run_with_client(
        lambda client: client.inbox.decide_turn(turn_id, kind, by=describe_caller(), note=note, text=text)
    )
    write_result(as_json, turn.to_dict(), f"{kind.value}: {turn_id} goes on")

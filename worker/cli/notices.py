"""``turns notices``: calls for help, what is waiting to be sent, what was given up (docs/webhooks.md)."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from api_client.contract.settings import load
from api_client.contract.values.notices import Entry, Notice
from worker.cli import NO
from worker.cli.output import json_option, number_of, one_line, write_json, write_table
from worker.cli.turns.actions import whoami
from worker.cli.turns.turn import with_client
from worker.notices.outgoing import NotSent
from worker.notices.targets import deliver, shown, targets


@click.group()
def notices() -> None:
    """Calls for help, sent to HELIX_WEBHOOK_URLS and HELIX_NOTICE_COMMAND.

    A notice is tried for a day, with growing pauses; then it is given up, into the list of `turns notices dead`.
    """


@notices.command("list")
@json_option
def list_notices(as_json: bool) -> None:
    """List what is waiting to be sent, the next one first."""
    _show(with_client(lambda client: client.notices.waiting()), as_json, "nothing is waiting to be sent")


@notices.command()
@json_option
def dead(as_json: bool) -> None:
    """List what was given up, the newest first."""
    _show(with_client(lambda client: client.notices.given_up()), as_json, "nothing was given up")


def _show(entries: Sequence[Entry], as_json: bool, none: str) -> None:
    if as_json:
        write_json([entry.to_dict() for entry in entries])
        return
    if not entries:
        click.echo(none)
        return
    rows: list[tuple[str, ...]] = [("notice", "kind", "put at", "tries", "last error")]
    for entry in entries:
        when = datetime.fromtimestamp(entry.put_at, UTC).isoformat(sep=" ", timespec="seconds")
        rows.append((entry.notice_id, entry.kind, when, str(entry.tries), one_line(entry.error, 80)))
    write_table(rows)


@notices.command()
@click.argument("notice_ids", metavar="[NOTICE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were given up.")
@json_option
def resend(notice_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Send notices that were given up again, for another day. They keep their ids."""
    _require_choice(notice_ids, everything)
    chosen = with_client(lambda client: client.notices.send_again(notice_ids, by=whoami()))
    write_json({"resent": chosen}) if as_json else click.echo(f"{number_of(len(chosen), 'notice')} will be sent again")


@notices.command()
@click.argument("notice_ids", metavar="[NOTICE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were given up.")
@json_option
def drop(notice_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Take notices off the list of those that were given up."""
    _require_choice(notice_ids, everything)
    chosen = with_client(lambda client: client.notices.drop(notice_ids, by=whoami()))
    write_json({"dropped": chosen}) if as_json else click.echo(f"{number_of(len(chosen), 'notice')} dropped")


def _require_choice(notice_ids: Sequence[str], everything: bool) -> None:
    if bool(notice_ids) == everything:
        raise click.UsageError("name notices, or --all (see `turns notices dead`)")


@notices.command()
@json_option
def test(as_json: bool) -> None:
    """Send one notice to every target, from here and now. Exit code 1 when one does not take it."""
    settings = load()
    if not targets(settings):
        raise click.UsageError("nobody is called: set HELIX_WEBHOOK_URLS or HELIX_NOTICE_COMMAND")
    notice = Notice(kind="notice.test", subject=secrets.token_hex(8), at=time.time(), data={"text": "It works."})
    entry = Entry(notice_id=notice.notice_id, body=notice.body(), put_at=notice.at)
    said: dict[str, str] = {}
    for target in targets(settings):
        try:
            deliver(settings, target, entry)
            said[shown(target)] = ""
        except NotSent as error:
            said[shown(target)] = str(error)
    if as_json:
        write_json([{"target": target, "error": problem} for target, problem in said.items()])
    else:
        for target, problem in said.items():
            click.echo(f"{target}: {one_line(problem, 300) or 'taken'}")
    if any(said.values()):
        raise click.exceptions.Exit(NO)


@notices.command(short_help="Make a key for HELIX_WEBHOOK_SECRET.")
def secret() -> None:
    """Make a key for HELIX_WEBHOOK_SECRET, and for the receiver (OPENAI_WEBHOOK_SECRET of OpenAI's SDK)."""
    click.echo("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())

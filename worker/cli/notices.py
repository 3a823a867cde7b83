"""``turns notices``: calls for help, what is waiting to be sent, what was given up (docs/webhooks.md)."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import click
from redis.exceptions import RedisError

from api_client.contract.errors import StoreUnavailable
from api_client.contract.settings import Settings, load, require_store
from api_client.contract.values.notices import Notice
from worker.cli import NO
from worker.cli.output import json_option, number_of, one_line, write_json, write_table
from worker.notices.outbox import Entry, Outbox
from worker.notices.outgoing import NotSent
from worker.notices.targets import deliver, shown, targets
from worker.turns.record.store import connect

Result = TypeVar("Result")


@click.group()
def notices() -> None:
    """Calls for help, sent to HELIX_WEBHOOK_URLS and HELIX_NOTICE_COMMAND.

    A notice is tried for a day, with growing pauses; then it is given up, into the list of `turns notices dead`.
    """


def _with_outbox(settings: Settings, action: Callable[[Outbox], Result]) -> Result:
    try:
        with connect(settings, answer_seconds=5.0, resends=1) as store:
            return action(Outbox(settings.namespace, store))
    except RedisError as error:
        raise StoreUnavailable(type(error).__name__) from error


@notices.command("list")
@json_option
def list_notices(as_json: bool) -> None:
    """List what is waiting to be sent, the next one first."""
    _show(_with_outbox(require_store(load()), Outbox.waiting), as_json, "nothing is waiting to be sent")


@notices.command()
@json_option
def dead(as_json: bool) -> None:
    """List what was given up, the newest first."""
    _show(_with_outbox(require_store(load()), Outbox.dead), as_json, "nothing was given up")


def _show(entries: Sequence[Entry], as_json: bool, none: str) -> None:
    if as_json:
        told = (
            {
                "notice_id": entry.notice_id,
                "kind": entry.kind,
                "put_at": entry.put_at,
                "tries": entry.tries,
                "error": entry.error,
                "body": entry.body,
            }
            for entry in entries
        )
        write_json(list(told))
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
    chosen = _chosen(notice_ids, everything, lambda outbox, entries: outbox.send_again(entries))
    write_json({"resent": chosen}) if as_json else click.echo(f"{number_of(len(chosen), 'notice')} will be sent again")


@notices.command()
@click.argument("notice_ids", metavar="[NOTICE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were given up.")
@json_option
def drop(notice_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Take notices off the list of those that were given up."""
    chosen = _chosen(notice_ids, everything, lambda outbox, entries: outbox.drop([each.notice_id for each in entries]))
    write_json({"dropped": chosen}) if as_json else click.echo(f"{number_of(len(chosen), 'notice')} dropped")


def _chosen(notice_ids: Sequence[str], everything: bool, act: Callable[[Outbox, Sequence[Entry]], None]) -> list[str]:
    if bool(notice_ids) == everything:
        raise click.UsageError("name notices, or --all (see `turns notices dead`)")

    def both(outbox: Outbox) -> list[str]:
        given_up = {entry.notice_id: entry for entry in outbox.dead()}
        if unknown := [each for each in notice_ids if each not in given_up]:
            raise click.UsageError(f"not given up: {one_line(unknown[0], 60)} (see `turns notices dead`)")
        entries = [entry for entry in given_up.values() if everything or entry.notice_id in notice_ids]
        act(outbox, entries)
        return [entry.notice_id for entry in entries]

    return _with_outbox(require_store(load()), both)


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


@notices.command()
def secret() -> None:
    """Make a key for HELIX_WEBHOOK_SECRET, and for the receiver (OPENAI_WEBHOOK_SECRET of OpenAI's SDK)."""
    click.echo("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())

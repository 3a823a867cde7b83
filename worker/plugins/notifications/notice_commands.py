"""Implement ``turns notices``: waiting and undeliverable notifications (docs/webhooks.md)."""

from __future__ import annotations

import base64
import secrets
import time

import click

from api_client.client import TurnsClient
from api_client.contract.notices import Entry, Notice
from api_client.contract.settings import load
from api_client.resources.notifications import GIVEN_UP, NOTICES
from worker.cli import NO
from worker.cli.output import json_option, number_of, one_line, write_said
from worker.cli.resources.listing import make_list_command
from worker.cli.store_access import whoami, with_client
from worker.plugins.notifications.outgoing import NotSent, deliver, shown, targets


@click.group()
def notices() -> None:
    """List, resend, drop and test notifications to HELIX_WEBHOOK_URLS and HELIX_NOTICE_COMMAND.

    A notification is retried for a day with growing delays, then it moves to the list of `turns notices dead`.
    """


notices.add_command(make_list_command(NOTICES, "list", "List notices that wait to be sent, the next one first."))
notices.add_command(make_list_command(GIVEN_UP, "dead", "List what was given up, the newest first."))


def _acting(action: str, past: str, said: str, about: str) -> None:

    @click.argument("notice_ids", metavar="[NOTICE]...", nargs=-1)
    @click.option("--all", "everything", is_flag=True, help="All that were given up.")
    @json_option
    def command(notice_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
        if bool(notice_ids) == everything:
            raise click.UsageError("name notices, or --all (see `turns notices dead`)")

        async def act(client: TurnsClient) -> list[str]:
            on = client.notices.send_again if action == "resend" else client.notices.drop
            return await on(notice_ids, by=whoami())

        chosen = with_client(act)
        write_said(as_json, {past: chosen}, f"{number_of(len(chosen), 'notice')} {said}")

    notices.add_command(click.command(action, help=about)(command))


_acting(
    "resend",
    "resent",
    "will be sent again",
    "Send notices that were given up again, for another day. They keep their ids.",
)
_acting("drop", "dropped", "dropped", "Take notices off the list of those that were given up.")


@notices.command()
@json_option
def test(as_json: bool) -> None:
    """Send a test notification to every target from here. Exit code 1 if a target refuses it."""
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
    words = "\n".join(f"{target}: {one_line(problem, 300) or 'taken'}" for target, problem in said.items())
    write_said(as_json, [{"target": target, "error": problem} for target, problem in said.items()], words)
    if any(said.values()):
        raise click.exceptions.Exit(NO)


@notices.command(short_help="Make a key for HELIX_WEBHOOK_SECRET.")
def secret() -> None:
    """Generate a secret for HELIX_WEBHOOK_SECRET and the receiver (OPENAI_WEBHOOK_SECRET of OpenAI's SDK)."""
    click.echo("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())

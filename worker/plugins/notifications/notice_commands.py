"""Implement ``turns notices``: waiting and undeliverable notifications (docs/webhooks.md)."""

from __future__ import annotations

import base64
import secrets
import time

import click

from api_client.client import TurnsClient
from api_client.contract.notification import Notification, OutboxEntry
from api_client.contract.settings import load_settings
from api_client.resources.notifications import GIVEN_UP, NOTICES
from worker.cli import NO
from worker.cli.output import count_noun, fit_line, json_option, write_result
from worker.cli.resources.listing import make_list_command
from worker.cli.store_access import describe_caller, run_with_client
from worker.plugins.notifications.delivery import DeliveryError, deliver_notification, list_targets, mask_target


@click.group()
def notices() -> None:
    """List, resend, drop and test notifications to HELIX_WEBHOOK_URLS and HELIX_NOTICE_COMMAND.

    A notification is retried for a day with growing delays, then it moves to the list of `turns notices dead`.
    """


notices.add_command(make_list_command(NOTICES, "list", "List notices that wait to be sent, the next one first."))
notices.add_command(make_list_command(GIVEN_UP, "dead", "List what was given up, the newest first."))


def _add_action_command(action: str, past: str, said: str, about: str) -> None:

    @click.argument("notice_ids", metavar="[NOTICE]...", nargs=-1)
    @click.option("--all", "everything", is_flag=True, help="All that were given up.")
    @json_option
    def command(notice_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
        if bool(notice_ids) == everything:
            raise click.UsageError("name notices, or --all (see `turns notices dead`)")

        async def apply_action(client: TurnsClient) -> list[str]:
            on = client.notices.send_again if action == "resend" else client.notices.drop
            return await on(notice_ids, by=describe_caller())

        chosen = run_with_client(apply_action)
        write_result(as_json, {past: chosen}, f"{count_noun(len(chosen), 'notice')} {said}")

    notices.add_command(click.command(action, help=about)(command))


_add_action_command(
    "resend",
    "resent",
    "will be sent again",
    "Send notices that were given up again, for another day. They keep their ids.",
)
_add_action_command("drop", "dropped", "dropped", "Take notices off the list of those that were given up.")


@notices.command()
@json_option
def test(as_json: bool) -> None:
    """Send a test notification to every target from here. Exit code 1 if a target refuses it."""
    settings = load_settings()
    if not list_targets(settings):
        raise click.UsageError("nobody is called: set HELIX_WEBHOOK_URLS or HELIX_NOTICE_COMMAND")
    notice = Notification(kind="notice.test", subject=secrets.token_hex(8), at=time.time(), data={"text": "It works."})
    entry = OutboxEntry(notice_id=notice.notice_id, body=notice.to_body(), put_at=notice.at)
    said: dict[str, str] = {}
    for target in list_targets(settings):
        try:
            deliver_notification(settings, target, entry)
            said[mask_target(target)] = ""
        except DeliveryError as error:
            said[mask_target(target)] = str(error)
    words = "\n".join(f"{target}: {fit_line(problem, 300) or 'taken'}" for target, problem in said.items())
    write_result(as_json, [{"target": target, "error": problem} for target, problem in said.items()], words)
    if any(said.values()):
        raise click.exceptions.Exit(NO)


@notices.command(short_help="Make a key for HELIX_WEBHOOK_SECRET.")
def secret() -> None:
    """Generate a secret for HELIX_WEBHOOK_SECRET and the receiver (OPENAI_WEBHOOK_SECRET of OpenAI's SDK)."""
    click.echo("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())

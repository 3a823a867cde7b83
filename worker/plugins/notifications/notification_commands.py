"""Implement ``turns notifications``: notifications that wait or were given up (docs/webhooks.md)."""

from __future__ import annotations

import base64
import secrets
import time

import click

from api_client.client import TurnsClient
from api_client.contract.notification import Notification, OutboxEntry
from api_client.contract.settings import load_settings
from api_client.resources.notifications import GIVEN_UP, NOTIFICATIONS
from worker.cli import NO
from worker.cli.output import count_noun, fit_line, json_option, write_result
from worker.cli.resources.listing import make_list_command
from worker.cli.store_access import describe_caller, run_with_client
from worker.plugins.notifications.delivery import DeliveryError, deliver_notification, list_targets, mask_target


@click.group()
def notifications() -> None:
    """List, resend, drop and test notifications to HELIX_WEBHOOK_URLS and HELIX_NOTIFICATION_COMMAND.

    A notification is retried for a day with growing delays, then it moves to the list of `turns notifications dead`.
    """


notifications.add_command(
    make_list_command(
        NOTIFICATIONS,
        "list",
        "List notifications that wait to be sent, the next one first.",
        example="notifications list",
    )
)
notifications.add_command(
    make_list_command(
        GIVEN_UP, "dead", "List notifications that were given up, the newest first.", example="notifications dead"
    )
)


def _add_action_command(action: str, past: str, said: str, about: str) -> None:

    @click.argument("notification_ids", metavar="[NOTIFICATION]...", nargs=-1)
    @click.option("--all", "everything", is_flag=True, help="All notifications that were given up.")
    @json_option
    def command(notification_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
        if bool(notification_ids) == everything:
            raise click.UsageError("name notifications, or --all (see `turns notifications dead`)")

        async def apply_action(client: TurnsClient) -> list[str]:
            on = client.notifications.send_again if action == "resend" else client.notifications.drop
            return await on(notification_ids, by=describe_caller())

        chosen = run_with_client(apply_action)
        write_result(as_json, {past: chosen}, f"{count_noun(len(chosen), 'notification')} {said}")

    notifications.add_command(
        click.command(action, help=about, epilog=f"Example: turns notifications {action} --all")(command)
    )


_add_action_command(
    "resend",
    "resent",
    "will be sent again",
    "Send given-up notifications again, for another day. They keep their ids.",
)
_add_action_command("drop", "dropped", "dropped", "Delete notifications that were given up.")


@notifications.command(epilog="Example: turns notifications test")
@json_option
def test(as_json: bool) -> None:
    """Send a test notification from this machine to every target. Exit code 1 if a target refuses it."""
    settings = load_settings()
    if not list_targets(settings):
        raise click.UsageError("nobody would be notified: set HELIX_WEBHOOK_URLS or HELIX_NOTIFICATION_COMMAND")
    notification = Notification(
        kind="notification.test", subject=secrets.token_hex(8), at=time.time(), data={"text": "It works."}
    )
    entry = OutboxEntry(
        notification_id=notification.notification_id, body=notification.to_body(), put_at=notification.at
    )
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


@notifications.command(epilog="Example: turns notifications secret")
def secret() -> None:
    """Generate a webhook secret for HELIX_WEBHOOK_SECRET here and OPENAI_WEBHOOK_SECRET at the receiver."""
    click.echo("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())

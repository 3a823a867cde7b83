"""Checks the targets of notifications and the given-up notifications, without sending any."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.notification import OutboxEntry
from api_client.contract.settings import Settings
from worker.cli.checks.finding import Finding
from worker.cli.output import count_noun
from worker.cli.store_access import run_with_settings
from worker.plugins.notifications.delivery import DeliveryError, list_targets, resolve_addresses


def notifications(settings: Settings) -> Iterator[Finding]:
    """Check where notifications are sent, and whether some could not be delivered. Yield the findings."""
    if not list_targets(settings) or not settings.store_url:
        yield Finding(
            "notifications", "ok", "nobody is notified: HELIX_WEBHOOK_URLS and HELIX_NOTIFICATION_COMMAND are empty"
        )
        return
    for url in settings.webhook_urls:
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            resolve_addresses(parts.hostname or "", port, allow_internal=settings.webhook_internal == "allowed")
        except DeliveryError as error:
            yield Finding("webhook", "wrong", str(error), "correct HELIX_WEBHOOK_URLS, or the name's address")
    if settings.webhook_urls and not settings.webhook_secret:
        fix = "set HELIX_WEBHOOK_SECRET to what `turns notifications secret` prints, and tell the receiver"
        yield Finding("webhook", "warning", "webhooks are not signed, so anyone could forge one", fix)

    async def read_outbox(client: TurnsClient) -> Finding:
        return report_outbox(await client.notifications.waiting(), await client.notifications.given_up())

    try:
        yield run_with_settings(settings, read_outbox)
    except HelixError:
        return  # reported by the checks of the store


def report_outbox(waiting: list[OutboxEntry], given_up: list[OutboxEntry]) -> Finding:
    """Report how many notifications are waiting to be sent, and how many were abandoned after too many attempts."""
    failing = [entry for entry in waiting if entry.error]
    if given_up:
        said = f"{count_noun(len(given_up), 'notification')} given up after a day, the last one: {given_up[0].error}"
        return Finding(
            "notifications", "warning", said, "`turns notifications dead`, then `turns notifications resend --all`"
        )
    if failing:
        said = f"{count_noun(len(failing), 'notification')} not delivered yet: {failing[0].error}"
        return Finding(
            "notifications", "warning", said, "check that the receiver can be reached: `turns notifications test`"
        )
    return Finding(
        "notifications", "ok", f"{count_noun(len(waiting), 'notification')} waiting to be sent, none given up"
    )

"""Notifications that wait to be sent or were given up, as commands, API and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.notification import OutboxEntry
from api_client.resources.resource import Button, Column, Listed, Resource, ResourcePage


async def _waiting(client: TurnsClient, most: int) -> Listed[OutboxEntry]:
    return await client.notifications.waiting(most), asdict(await client.notifications.counts())


async def _given_up(client: TurnsClient, most: int) -> Listed[OutboxEntry]:
    return await client.notifications.given_up(most), asdict(await client.notifications.counts())


_COLUMNS: tuple[Column[OutboxEntry], ...] = (
    Column("notification", lambda each, _: each.notification_id, "id"),
    Column("kind", lambda each, _: each.kind),
    Column("put at", lambda each, _: each.put_at, "when"),
    Column("tries", lambda each, _: each.tries, "num"),
    Column("last error", lambda each, _: each.error or ("" if each.tries else "not tried yet"), "wide", 200),
)


def _named(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the notifications named in a form. An empty tuple means all notifications."""
    return (fields["notification"],) if fields.get("notification") else ()


NOTIFICATIONS = Resource[OutboxEntry](
    read=_waiting,
    none="nothing is waiting to be sent",
    caption=lambda facts: f"{facts['waiting']:,} waiting to be sent",
    columns=_COLUMNS,
    api="/v1/notifications",
    called="list_waiting",
    about="The notifications that wait to be sent, the next one first.",
    kind="notification",
    limited=True,
    private=True,
    doing="reads, sends and drops notifications",
)
GIVEN_UP = replace(
    NOTIFICATIONS,
    read=_given_up,
    none="nothing was given up",
    caption=lambda facts: f"{facts['given_up']:,} given up after a day",
    api="/v1/notifications/dead",
    called="list_given_up",
    about="The notifications that were given up after a day, the newest first.",
    buttons=(
        Button[OutboxEntry](
            name="resend",
            words="Send again",
            all_words="Send all again",
            fields=lambda each: {"notification": each.notification_id},
            act=lambda client, form, by: client.notifications.send_again(_named(form), by=by),
        ),
        Button[OutboxEntry](
            name="drop",
            words="Drop",
            all_words="Drop all",
            fields=lambda each: {"notification": each.notification_id},
            act=lambda client, form, by: client.notifications.drop(_named(form), by=by),
        ),
    ),
)


async def _who_sends(client: TurnsClient) -> dict[str, Any]:
    return {"sent": await client.notifications.is_sending()}


RESOURCES = (NOTIFICATIONS, GIVEN_UP)
PAGES = (
    ResourcePage(
        address="/notifications",
        title="Notifications",
        position=6,
        resources=(GIVEN_UP, NOTIFICATIONS),
        template="notifications.html",
        more=_who_sends,
    ),
)

"""Notifications that wait to be sent or were given up, as commands, API and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.notification import OutboxEntry
from api_client.resources.resource import Button, Column, Listed, Resource, ResourcePage


async def _waiting(client: TurnsClient, most: int) -> Listed[OutboxEntry]:
    return await client.notices.waiting(most), asdict(await client.notices.counts())


async def _given_up(client: TurnsClient, most: int) -> Listed[OutboxEntry]:
    return await client.notices.given_up(most), asdict(await client.notices.counts())


_NOTICE: tuple[Column[OutboxEntry], ...] = (
    Column("notice", lambda each, _: each.notice_id, "id"),
    Column("kind", lambda each, _: each.kind),
    Column("put at", lambda each, _: each.put_at, "when"),
    Column("tries", lambda each, _: each.tries, "num"),
    Column("last error", lambda each, _: each.error or ("" if each.tries else "not tried yet"), "wide", 200),
)


def _named(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the id of the notification named in a submitted form; an empty tuple means all notifications."""
    return (fields["notice"],) if fields.get("notice") else ()


NOTICES = Resource[OutboxEntry](
    read=_waiting,
    none="nothing is waiting to be sent",
    caption=lambda facts: f"{facts['waiting']:,} waiting to be sent",
    columns=_NOTICE,
    api="/v1/notices",
    called="list_waiting",
    about="The notices that wait to be sent, the next one first.",
    kind="notice",
    limited=True,
    private=True,
    doing="reads, sends and drops notices",
)
GIVEN_UP = replace(
    NOTICES,
    read=_given_up,
    none="nothing was given up",
    caption=lambda facts: f"{facts['given_up']:,} given up after a day",
    api="/v1/notices/dead",
    called="list_given_up",
    about="The notices that nobody took for a day, the newest first.",
    buttons=(
        Button[OutboxEntry](
            name="resend",
            words="Send again",
            all_words="Send all again",
            fields=lambda each: {"notice": each.notice_id},
            act=lambda client, form, by: client.notices.send_again(_named(form), by=by),
        ),
        Button[OutboxEntry](
            name="drop",
            words="Drop",
            all_words="Drop all",
            fields=lambda each: {"notice": each.notice_id},
            act=lambda client, form, by: client.notices.drop(_named(form), by=by),
        ),
    ),
)


async def _who_sends(client: TurnsClient) -> dict[str, Any]:
    return {"sent": await client.notices.are_sent()}


RESOURCES = (NOTICES, GIVEN_UP)
PAGES = (
    ResourcePage(
        address="/notices",
        title="Notices",
        position=6,
        resources=(GIVEN_UP, NOTICES),
        template="notices.html",
        more=_who_sends,
    ),
)

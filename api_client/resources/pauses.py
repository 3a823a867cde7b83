"""Pauses, open circuit breakers and limits of services, as a command, API and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.clock_time import format_clock_time
from api_client.pauses.pause import BREAKER, LIMIT, WHATS, Pause
from api_client.resources.resource import Button, CellContext, Column, Listed, Resource, ResourcePage, Viewer


async def _in_force(client: TurnsClient, _most: int) -> Listed[Pause]:
    return await client.pauses.list_active(), {"held_turns": await client.pauses.count_held()}


def held_back(facts: Mapping[str, Any]) -> str:
    """Return a phrase with the number of turns that pauses hold back, such as ``3 turns held back``."""
    return f"{facts['held_turns']:,} turn{'' if facts['held_turns'] == 1 else 's'} held back"


def _until(each: Pause, context: CellContext) -> str:
    if each.probing:
        return "one turn tries now"
    return format_clock_time(each.until, context.now) if each.until else "resumed"


def _of_pause(each: Pause, viewer: Viewer) -> Pause | None:
    if viewer.operator:
        return each
    return None if each.what in {"key", "owner"} else replace(each, by="")


PAUSES = Resource[Pause](
    read=_in_force,
    none="nothing is paused",
    caption=held_back,
    columns=(
        Column("what", lambda each, context: context.named(each.title)),
        Column("since", lambda each, _: each.since, "clock"),
        Column("until", _until),
        Column(
            "by",
            lambda each, context: (
                f"{each.errors} errors in a row"
                if each.what == BREAKER
                else f"said {each.errors} time{'s' * (each.errors != 1)}"
                if each.what == LIMIT
                else context.named(each.by)
            ),
            "quiet",
            40,
        ),
        Column("why", lambda each, _: each.reason, "wide", 200),
    ),
    buttons=(
        Button[Pause](
            name="resume",
            words="Resume",
            fields=lambda each: {"what": "model" if each.what == BREAKER else each.what, "name": each.name},
            act=lambda client, form, by: client.pauses.end_pause(form.get("what", ""), form.get("name", ""), by=by),
        ),
    ),
    api="/v1/pauses",
    called="list_pauses",
    about="Pauses, open breakers, and services that limit us. Keys, owners and who paused are shown to operators only.",
    doing="pauses and resumes",
    shown=_of_pause,
)


async def _may_be_paused(client: TurnsClient) -> dict[str, Any]:
    return {"whats": WHATS, "models": client.settings.models}


RESOURCES = (PAUSES,)
PAGES = (
    ResourcePage(
        address="/paused", title="Paused", position=3, resources=(PAUSES,), template="paused.html", more=_may_be_paused
    ),
)

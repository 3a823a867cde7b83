"""The port of parts that capabilities add to pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from api_client.contract.package_parts import collect_parts
from api_client.contract.turn import Turn
from api_client.web.pages.visitor import Visitor
from api_client.web.relay.relay import Relay


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """An optional part of a page, such as a turn's tool calls: its templates, and the function that reads their values.

    A module in ``page_parts`` declares its part as ``PART``, and may have a ``router`` for further pages.
    """

    page: str
    templates: Mapping[str, str]
    read: Callable[[Relay, Visitor, Turn | None], Awaitable[dict[str, Any]]]


@cache
def _load_parts() -> list[PagePart]:
    return collect_parts("api_client.web.pages.page_parts", "PART")


async def read_parts(page: str, relay: Relay, visitor: Visitor, turn: Turn | None = None) -> dict[str, Any]:
    """Return the values of all parts of a page, and the parts' templates by place under ``added``."""
    values: dict[str, Any] = {"added": (added := defaultdict[str, list[str]](list))}
    for part in (part for part in _load_parts() if part.page == page):
        values |= await part.read(relay, visitor, turn)
        for place, template in part.templates.items():
            added[place].append(template)
    return values

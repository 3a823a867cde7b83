"""The orders port: records what a person orders before it is carried out, and why it was refused."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

#: Caller of an answer that came by a signed link: any person may hold the link.
LINK_HOLDER = "anyone who has the link"


@dataclass(slots=True)
class PlacedOrder:
    """An order that is being carried out. ``refused`` is the reason if the order fails."""

    refused: str = ""


class Orders(Protocol):
    """Records operators' orders. Methods raise ``StoreUnavailable``."""

    def place_order(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AbstractAsyncContextManager[PlacedOrder]:
        """Record an order before the ``async with`` block carries it out. If the block fails, record the reason."""

    async def write_line(self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = "") -> str:
        """Record an order and return the id of the record."""

    async def add_refusal(self, recorded: str, why: str | Exception) -> None:
        """Add the reason why an order was not carried out to its record."""


def name_caller(owner: str) -> str:
    """Return a short display name for a caller, made from its owner id."""
    return f"key:{owner[:12]}"

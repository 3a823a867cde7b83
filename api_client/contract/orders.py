"""The port of orders: what a person orders is recorded before it is carried out, with why it was refused if it was."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

#: Who answers by the signed link of a chat: nobody knows which person that was.
LINK_HOLDER = "anyone who has the link"


@dataclass(slots=True)
class PlacedOrder:
    """An order at work; ``refused``: why it was not carried out, where nothing raises. Empty: it was."""

    refused: str = ""


class Orders(Protocol):
    """Records orders. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def place(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AbstractAsyncContextManager[PlacedOrder]:
        """Record an order, then let the body of ``async with`` carry it out; if that raises, record why."""

    async def record(self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = "") -> str:
        """Record an order whose end the caller records by itself; returns the id of the record."""

    async def refuse(self, recorded: str, why: str | Exception) -> None:
        """Add to a recorded order why it was not carried out."""


def name_caller(owner: str) -> str:
    """Return who acts through the API: the beginning of the owner's hash, never a name or a key."""
    return f"key:{owner[:12]}"

"""The orders port: records what a person orders before it is carried out, and why it was refused."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

#: Caller of an answer that came by a signed link: any person may hold the link.
LINK_HOLDER = "anyone who has the link"


@dataclass(slots=True)
class PlacedOrder:
    """An order being carried out. ``refused`` says why it failed without an exception; empty if it succeeded."""

    refused: str = ""


class Orders(Protocol):
    """Records orders. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def place(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AbstractAsyncContextManager[PlacedOrder]:
        """Record an order, then let the body of ``async with`` carry it out. Record the reason if the body raises."""

    async def record(self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = "") -> str:
        """Record an order and return the record's id. The caller records the outcome."""

    async def refuse(self, recorded: str, why: str | Exception) -> None:
        """Add the reason to a recorded order that was not carried out."""


def name_caller(owner: str) -> str:
    """Return who acts through the API: the start of the owner's hash, never a name or a key."""
    return f"key:{owner[:12]}"

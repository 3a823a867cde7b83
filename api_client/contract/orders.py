"""The orders port: records what a person orders before it is carried out, and why it was refused."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

#: Caller of an answer that came by a signed link: any person may hold the link.
LINK_HOLDER = "anyone who has the link"


@dataclass(slots=True)
class PlacedOrder:
    """An operator's order that is being carried out; ``refused`` says why it failed, and is empty on success."""

    refused: str = ""


class Orders(Protocol):
    """Records the orders of operators. Each method raises ``StoreUnavailable`` if the store does not answer."""

    def place_order(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AbstractAsyncContextManager[PlacedOrder]:
        """Record an order that the body of ``async with`` carries out; if the body raises, record the reason too."""

    async def write_line(self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = "") -> str:
        """Record an order and return the id of the record."""

    async def add_refusal(self, recorded: str, why: str | Exception) -> None:
        """Add to the record of an order why the order was not carried out."""


def name_caller(owner: str) -> str:
    """Return a short name for a caller of the API, made from its owner id."""
    return f"key:{owner[:12]}"

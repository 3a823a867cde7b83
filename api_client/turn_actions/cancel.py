"""Cancel unfinished turns."""

from __future__ import annotations

from typing import Any

from api_client.client import TurnsClient
from api_client.contract.turn import Turn, TurnState
from api_client.index.search import STATUSES
from api_client.operator_actions import ActionResult, TurnAction


class CancelAction(TurnAction):
    """Stops a turn before or while it runs."""

    name, past, targets, only = "cancel", "cancelled", "unfinished turns", "unfinished"
    position = 1
    statuses = STATUSES["unfinished"]

    async def apply(self, client: TurnsClient, turn: Turn, *, owner: str | None) -> ActionResult:
        """Cancel the turn. A finished turn is left unchanged."""
        after = await client.canceller.cancel(turn.turn_id, owner=owner)
        if turn.state is TurnState.FINISHED:
            return ActionResult(turn.turn_id, False, f"was already finished: {turn.outcome}")
        return ActionResult(turn.turn_id, True, after.outcome.value if after.outcome else "stopping")

    def result_data(self, done: ActionResult, turn: Turn) -> dict[str, Any]:
        return turn.to_dict()


ACTION = CancelAction()

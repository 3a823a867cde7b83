"""Drop dead letters."""

from __future__ import annotations

from api_client.client import TurnsClient
from api_client.contract.turn import Turn
from api_client.operator_actions import ActionResult, TurnAction


class DropAction(TurnAction):
    """Removes a turn from the dead letters. The turn stays readable until its retention ends."""

    name, past, targets, only = "drop", "dropped", "dead letters", "dead"
    position = 3
    operators_only = "drops dead letters"

    async def apply(self, client: TurnsClient, turn: Turn, *, owner: str | None) -> ActionResult:
        """Remove the turn from the dead letters. Raises ``TurnNotFinished`` if it is not among them."""
        await client.dead_letters.drop_letter(turn.turn_id)
        return ActionResult(turn.turn_id, True, "dropped")


ACTION = DropAction()

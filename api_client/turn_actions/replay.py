"""Replay finished turns: submit them again as new turns, to the same or another model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.errors import TurnNotFinished
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.index.search import STATUSES
from api_client.operator_actions import ActionResult, NewTurn, TurnAction
from api_client.policies.turn_replays import build_replay_request, derive_replay_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAction(TurnAction):
    """Submits a turn again, optionally with another model or last message."""

    model: str = ""
    prompt: str = ""

    name, past, targets, only = "replay", "replayed", "finished turns", "finished"
    position = 2
    statuses = ("success", "unsuccessful", *STATUSES["finished"])
    style = "main"
    submits = True

    @property
    def detail(self) -> str:
        """Return the new model and whether the message was edited, without quoting the new message."""
        parts = [f"model={self.model}" if self.model else "", "message edited" if self.prompt else ""]
        return ", ".join(filter(None, parts))

    def with_model(self, model: str) -> ReplayAction:
        return replace(self, model=model)

    def drop_unchanged(self, turn: Turn) -> ReplayAction:
        """Return the action without its model or message if the turn already has the same one."""
        same_text = self.prompt == turn.request.prompt.replace("\r\n", "\n")
        model = "" if self.model == turn.request.model else self.model
        return replace(self, model=model, prompt="" if same_text else self.prompt)

    def new_turn(self, turn: Turn) -> NewTurn:
        new_id = derive_replay_id(turn.turn_id, self.model, self.prompt)
        return NewTurn(new_id, self.model or turn.request.model, self.prompt)

    async def apply(self, client: TurnsClient, turn: Turn, *, owner: str | None) -> ActionResult:
        """Submit the turn again. If it is a dead letter, remove it from the list."""
        known = bool(await client.lists.read_turns([self.new_turn(turn).turn_id]))
        new = await self.submit(client, turn)
        if turn.outcome is Outcome.DEAD:
            await client.dead_letters.drop_letter(turn.turn_id)
        return ActionResult(turn.turn_id, True, "replayed", new, before=known)

    async def submit(self, client: TurnsClient, turn: Turn) -> str:
        """Submit a finished turn again as a new turn of the same session, and return the new turn's id. Idempotent.

        Raises the errors of ``Submitter.submit``, and ``TurnNotFinished``.
        """
        if turn.state is not TurnState.FINISHED:
            raise TurnNotFinished(turn.turn_id)
        request = await build_replay_request(
            turn, client.settings, client.policies, client.flows, model=self.model, prompt=self.prompt
        )
        return await client.submitter.submit(request, turn_id=self.new_turn(turn).turn_id)

    def result_data(self, done: ActionResult, turn: Turn) -> dict[str, Any]:
        """Return the ids of the new turn and of the original turn."""
        return {"turn_id": done.new_turn_id, "replay_of": turn.turn_id}


ACTION = ReplayAction()

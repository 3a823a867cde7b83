"""Actions of operators: cancel, replay or drop one turn, or all that match a search. Each is a recorded order."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, SessionBusy, TurnNotFinished, TurnNotFound
from api_client.contract.turn import Outcome, TurnState
from api_client.contract.worker_order import WorkerOrder
from api_client.index.search import FoundTurn, Search
from api_client.index.selection import select_turns
from api_client.policies.turn_replays import derive_replay_id

#: Action -> turns that it applies to.
ACTIONS = {"cancel": "unfinished turns", "replay": "finished turns", "drop": "dead letters"}
_ONLY = {"cancel": "unfinished", "replay": "finished", "drop": "dead"}


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an operator's action on one turn.

    ``said`` is ``cancelled``, ``stopping``, ``replayed``, ``dropped``, or why nothing was done. ``before`` is True if
    the same replay was made earlier, so that no new turn was created.
    """

    turn_id: str
    done: bool
    said: str
    new_turn_id: str = ""
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayChange:
    """Describes how a replay differs from the original turn: another model or another last message."""

    model: str = ""
    prompt: str = ""

    def __str__(self) -> str:
        """Describe the change for the audit log without revealing the new message."""
        parts = [f"model={self.model}" if self.model else "", "message edited" if self.prompt else ""]
        return ", ".join(filter(None, parts))


_SAME = ReplayChange()


async def select_targets(client: TurnsClient, action: str, search: Search) -> list[FoundTurn]:
    """Return the turns that match a search and that allow the action, oldest first."""
    return await select_turns(client.lists, search, only=_ONLY[action])


async def carry_out_action(
    client: TurnsClient,
    action: str,
    turn_id: str,
    *,
    by: str,
    owner: str | None = None,
    bulk: str = "",
    detail: str = "",
    change: ReplayChange = _SAME,
) -> ActionResult:
    """Apply an operator's action to one turn and record the action in the audit log. Idempotent.

    Raises ``TurnNotFound`` if the turn does not exist or has another owner; ``TurnNotFinished`` for a replay of an
    unfinished turn or a drop of a turn that is no dead letter; ``BadRequest`` for a replay that can never succeed.
    """
    before = await client.reader.read_turn(turn_id, owner=owner)
    detail = ", ".join(filter(None, (detail, str(change))))
    async with client.orders.place_order(action, by=by, turn_id=turn_id, bulk=bulk, detail=detail) as order:
        if action == "cancel":
            after = await client.canceller.cancel(turn_id, owner=owner)
            if before.state is TurnState.FINISHED:
                order.refused = f"was already finished: {before.outcome}"
                return ActionResult(turn_id, False, order.refused)
            return ActionResult(turn_id, True, after.outcome.value if after.outcome else "stopping")
        if action == "replay":
            known = bool(await client.lists.read_turns([derive_replay_id(turn_id, change.model, change.prompt)]))
            new = await client.replay_turn(turn_id, model=change.model, prompt=change.prompt)
            if before.outcome is Outcome.DEAD:
                await client.dead_letters.drop_letter(turn_id)
            return ActionResult(turn_id, True, "replayed", new, before=known)
        await client.dead_letters.drop_letter(turn_id)
        return ActionResult(turn_id, True, "dropped")


async def order_worker(client: TurnsClient, name: str, order: WorkerOrder, *, by: str, detail: str = "") -> str:
    """Send an operator's order to a worker, record the order in the audit log, and return the worker's full name."""
    whole = await client.workers.find_worker(name)
    async with client.orders.place_order(
        f"worker {order.value}", by=by, detail=" ".join(filter(None, (whole, detail)))
    ):
        return await client.workers.order_worker(whole, order)


async def act_on_all(
    client: TurnsClient,
    action: str,
    turns: list[FoundTurn],
    *,
    by: str,
    bulk: str,
    detail: str,
    owner: str | None = None,
    change: ReplayChange = _SAME,
) -> AsyncGenerator[ActionResult]:
    """Apply an action to each turn in sequence and yield each result; a turn that changed meanwhile is skipped.

    May be killed and repeated. If ``StoreUnavailable`` is raised, the yielded actions are done.
    """
    for turn in turns:
        try:
            yield await carry_out_action(
                client, action, turn.turn_id, by=by, owner=owner, bulk=bulk, detail=detail, change=change
            )
        except (TurnNotFound, TurnNotFinished, SessionBusy, BadRequest) as error:
            yield ActionResult(turn.turn_id, False, str(error))


def count_by_status(turns: list[FoundTurn]) -> list[dict[str, Any]]:
    """Count turns by status and model, most frequent first, so that an operator can review a bulk action."""
    found: dict[tuple[str, str], int] = {}
    for turn in turns:
        what = (turn.status, turn.model)
        found[what] = found.get(what, 0) + 1
    return [
        {"status": status, "model": model, "turns": count}
        for (status, model), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]

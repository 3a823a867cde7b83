"""Operators' actions on turns and workers, recorded in the audit log. ``turn_actions`` defines the actions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, SessionBusy, TurnNotFinished, TurnNotFound
from api_client.contract.turn import Turn
from api_client.contract.worker_order import WorkerOrder
from api_client.index.search import FoundTurn, Search
from api_client.index.selection import select_turns


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an operator's action on one turn.

    ``said`` is the new state, such as ``cancelled``, or why nothing was done. ``before``: the same action had already
    created ``new_turn_id``.
    """

    turn_id: str
    done: bool
    said: str
    new_turn_id: str = ""
    before: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "before"}


class NewTurn(NamedTuple):
    """A turn that an action would submit: its id, its model, and its message if that differs from the old turn's."""

    turn_id: str
    model: str
    message: str


class TurnAction:
    """An operator's action on turns. Each module of ``turn_actions`` has one as its ``ACTION``.

    Attributes:
        name: its name in forms and in the audit log; ``past`` is its past participle.
        targets: the turns that it applies to, in words; ``only`` is the filter that finds them (see ``select_turns``).
        statuses: the statuses of such turns by which a caller may filter.
        operators_only: the action's name in the refusal of other callers; empty if owners may use it, too.
        style: of its button.
        submits: it makes new turns, which count against limits and may go to another model.
    """

    name, past, targets, only = "", "", "", ""
    position = 0
    statuses: tuple[str, ...] = ()
    operators_only = ""
    style = "danger"
    submits = False

    @property
    def detail(self) -> str:
        """Return what the audit log says about the action besides its name."""
        return ""

    def with_model(self, model: str) -> TurnAction:
        """Return the action with another model, or unchanged if the action submits no turns."""
        return self

    def drop_unchanged(self, turn: Turn) -> TurnAction:
        """Return the action without parameters that would change nothing for this turn."""
        return self

    def new_turn(self, turn: Turn) -> NewTurn:
        """Return the turn that the action would submit, or None if it submits none."""
        raise NotImplementedError

    async def apply(self, client: TurnsClient, turn: Turn, *, owner: str | None) -> ActionResult:
        """Carry out the action. Idempotent. Raises ``TurnNotFinished`` or ``BadRequest`` if it does not apply."""
        raise NotImplementedError

    def result_data(self, done: ActionResult, turn: Turn) -> dict[str, Any]:
        """Return an action's result as a JSON-ready dict. ``turn`` is the turn's record after the action."""
        return done.to_dict()


async def select_targets(client: TurnsClient, action: TurnAction, search: Search) -> list[FoundTurn]:
    """Return the turns that match a search and to which the action applies, oldest first.

    Raises the errors of ``select_turns``.
    """
    return await select_turns(client.lists, search, only=action.only)


async def carry_out_action(
    client: TurnsClient,
    action: TurnAction,
    turn_id: str,
    *,
    by: str,
    owner: str | None = None,
    bulk: str = "",
    detail: str = "",
) -> ActionResult:
    """Apply an operator's action to one turn and record the action in the audit log. Idempotent.

    Raises ``TurnNotFound`` if the turn does not exist or has another owner, and the errors of the action.
    """
    before = await client.reader.read_turn(turn_id, owner=owner)
    detail = ", ".join(filter(None, (detail, action.detail)))
    async with client.orders.place_order(action.name, by=by, turn_id=turn_id, bulk=bulk, detail=detail) as order:
        result = await action.apply(client, before, owner=owner)
        order.refused = "" if result.done else result.said
        return result


async def order_worker(client: TurnsClient, name: str, order: WorkerOrder, *, by: str, detail: str = "") -> str:
    """Send an operator's order to a worker, record the order in the audit log, and return the worker's full name."""
    whole = await client.workers.find_worker(name)
    async with client.orders.place_order(
        f"worker {order.value}", by=by, detail=" ".join(filter(None, (whole, detail)))
    ):
        return await client.workers.order_worker(whole, order)


async def act_on_all(
    client: TurnsClient, action: TurnAction, turns: list[FoundTurn], *, by: str, bulk: str, detail: str
) -> AsyncGenerator[ActionResult]:
    """Apply an action to each turn in sequence and yield the results, skipping turns that have changed meanwhile.

    May be killed and repeated. If ``StoreUnavailable`` is raised, the yielded actions are done.
    """
    for turn in turns:
        try:
            yield await carry_out_action(client, action, turn.turn_id, by=by, bulk=bulk, detail=detail)
        except (TurnNotFound, TurnNotFinished, SessionBusy, BadRequest) as error:
            yield ActionResult(turn.turn_id, False, str(error))


def count_by_status(turns: list[FoundTurn]) -> list[dict[str, Any]]:
    """Count turns by status and model, most frequent first, for an operator to review before a bulk action."""
    found: dict[tuple[str, str], int] = {}
    for turn in turns:
        what = (turn.status, turn.model)
        found[what] = found.get(what, 0) + 1
    return [
        {"status": status, "model": model, "turns": count}
        for (status, model), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]

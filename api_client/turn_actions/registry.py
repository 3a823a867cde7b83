"""The actions on turns by name: what the modules of this package declare."""

from __future__ import annotations

from api_client.contract.package_parts import collect_parts
from api_client.operator_actions import TurnAction

_FOUND: list[TurnAction] = sorted(collect_parts("api_client.turn_actions", "ACTION"), key=lambda each: each.position)
ACTIONS = {action.name: action for action in _FOUND}

"""Replays: a finished turn is submitted again as a new turn, to the same or another model."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from api_client.contract.policy import AppliedPolicy
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest, check_turn_id
from api_client.contract.work import find_work
from api_client.policies.flows import FLOW, FlowVersions
from api_client.policies.policy_admission import renew_policy
from api_client.policies.policy_files import PolicyFiles

#: The label of a turn that names the repeated turn.
REPLAY_OF = "replay_of"
#: Fields of a request that settings complete, each with the name of its setting.
_FILLED = {"validators": "validators", "max_attempts": "max_attempts", "policy": "policy_orders"}


def derive_replay_id(turn_id: str, model: str = "", prompt: str = "") -> str:
    """Derive the id of a turn's replay, so that repeating the same replay gives the same turn."""
    check_turn_id(turn_id)
    changed = f"\0{model}\0{prompt}" if model or prompt else ""
    return f"turn-{hashlib.sha256(f'replay of {turn_id}{changed}'.encode()).hexdigest()[:32]}"


async def build_replay_request(
    turn: Turn, settings: Settings, policies: PolicyFiles, flows: FlowVersions, *, model: str = "", prompt: str = ""
) -> TurnRequest:
    """Return the request that submits a turn again, optionally to another model or with another last message.

    A flow version that gets no turns any more is replaced by a current one. Raises the errors of
    ``PolicyFiles.apply_policy``.
    """
    request, flow = turn.request, turn.request.labels.get(FLOW, "")
    labels = {REPLAY_OF: turn.turn_id, FLOW: flow}
    request = replace(find_work(request).detach_request(request), traceparent="", labels=labels)
    if prompt:
        request = replace(request, messages=(*request.messages[:-1], {**request.messages[-1], "content": prompt}))
    named = {*_FILLED, "locale"}
    if model and model != request.model:
        request, unnamed = _for_model(request, settings, model)
        named -= unnamed
    if AppliedPolicy.from_request(request) is None:
        request = policies.apply_policy(request, owner=request.key, named=named)
    if flow and flow not in await flows.read_active():
        request = await renew_policy(request, policies, flows)
    return request


def _for_model(request: TurnRequest, settings: Settings, model: str) -> tuple[TurnRequest, set[str]]:
    """Return the request for another model, and the names of fields that a policy file may fill in."""
    before, now = settings.for_model(request.model), settings.for_model(model)
    ruled = AppliedPolicy.from_request(request) is not None
    unnamed = {
        name
        for name, setting in _FILLED.items()
        if (name in request.filled if ruled else getattr(request, name) == getattr(before, setting))
    }
    changes: dict[str, Any] = {name: getattr(now, _FILLED[name]) for name in unnamed}
    asked = {name: data for name, data in request.attached.items() if name not in request.filled}
    return replace(request, model=model, attached=asked, filled=(), template="", **changes), unnamed

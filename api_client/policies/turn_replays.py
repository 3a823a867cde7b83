"""Replays: a finished turn submitted again as a new one, to the same or another model."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from api_client.contract.policy import AppliedPolicy
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest, check_turn_id
from api_client.contract.work import find_work
from api_client.policies import Policies
from api_client.policies.flows import FLOW

#: The label of a turn that names the one it repeats.
REPLAY_OF = "replay_of"
#: Fields of a request, each with the setting that fills it in where the request does not name it.
_FILLED = {"validators": "validators", "max_attempts": "max_attempts", "policy": "policy_orders"}


def replay_id(turn_id: str, model: str = "", prompt: str = "") -> str:
    """The id of a turn's replay, by another ``model`` or with another ``prompt`` if these are given.

    Derived, so that replaying twice makes one turn. Raises ``ValueError``: not a turn id.
    """
    check_turn_id(turn_id)
    changed = f"\0{model}\0{prompt}" if model or prompt else ""
    return f"turn-{hashlib.sha256(f'replay of {turn_id}{changed}'.encode()).hexdigest()[:32]}"


def replay_request(
    turn_id: str, request: TurnRequest, settings: Settings, policies: Policies, *, model: str = "", prompt: str = ""
) -> TurnRequest:
    """The request of a turn's replay. ``model``: whom to ask instead, ``prompt``: the message instead of the last one.

    Raises as ``Policies.apply``.
    """
    labels = {REPLAY_OF: turn_id, FLOW: request.labels.get(FLOW, "")}
    request = replace(find_work(request).repeat(request), traceparent="", labels=labels)
    if prompt:
        request = replace(request, messages=(*request.messages[:-1], {**request.messages[-1], "content": prompt}))
    named = {*_FILLED, "locale"}
    if model and model != request.model:
        request, unnamed = _for_model(request, settings, model)
        named -= unnamed
    if AppliedPolicy.of(request) is None:
        request = policies.apply(request, owner=request.key, named=named)
    return request


def _for_model(request: TurnRequest, settings: Settings, model: str) -> tuple[TurnRequest, set[str]]:
    """The request to another model, and the fields that its policy file may fill in.

    It gets its own rules and attempts where the turn had those of its model; what its caller named stays.
    """
    before, now = settings.of_model(request.model), settings.of_model(model)
    ruled = AppliedPolicy.of(request) is not None
    unnamed = {
        name
        for name, setting in _FILLED.items()
        if (name in request.filled if ruled else getattr(request, name) == getattr(before, setting))
    }
    changes: dict[str, Any] = {name: getattr(now, _FILLED[name]) for name in unnamed}
    asked = {name: data for name, data in request.attached.items() if name not in request.filled}
    return replace(request, model=model, attached=asked, filled=(), template="", **changes), unnamed

"""What a request says to ``submit.lua``. Pure but for the turn's epoch, which is drawn."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Any

from api_client.contract.commands import Word
from api_client.contract.counters import label
from api_client.contract.settings import Settings
from api_client.contract.tasks import first_link
from api_client.contract.turn import TurnRequest

_DAY_MS = 86_400_000


def arguments(request: TurnRequest, settings: Settings, *, keyed: bool, replay_of: str) -> dict[str, Word]:
    """The arguments of ``submit.lua``; ``keyed`` says that the request came with an idempotency key."""
    cost_budget = int(request.cost_budget_usd * 1e6)
    return {
        "request": request.to_json(),
        "epoch": secrets.token_hex(6),
        "owner": request.owner,
        "locale": request.locale,
        "deadline_ms": int(request.deadline_seconds * 1000),
        "double_text": request.double_text.value,
        "body": digest(request) if keyed else "",
        "key_ms": keep_key_ms(request, settings),
        "session_id": request.session_id,
        "replay_of": replay_of,
        "token_budget": request.token_budget,
        "cost_budget": cost_budget,
        "token_reserve": request.token_budget // request.max_attempts,
        "cost_reserve": cost_budget // request.max_attempts,
        "model_label": label(request.model),
        "policy_hash": request.applied.hash if request.applied else "",
        "flow": request.flow,
        "first_link": str(first_link(request)),
        "from_claim": int(request.phase is not None),
        "max_attempts": request.max_attempts,
        "key": label(request.key) if request.key else "",
    }


def asked_of(request: TurnRequest) -> TurnRequest:
    """The request without what its caller did not ask for: a policy file that changed makes no other question of it."""
    blank: dict[str, Any] = {"validators": (), "policy": {}, "max_attempts": 1, "locale": ""}
    filled = request.applied.filled if request.applied else ()
    return replace(request, traceparent="", applied=None, flow="", **{name: blank[name] for name in filled})


def digest(request: TurnRequest) -> str:
    """What tells one request from another that came with the same idempotency key."""
    return hashlib.sha256(asked_of(request).to_json().encode()).hexdigest()


def keep_key_ms(request: TurnRequest, settings: Settings) -> int:
    """How long an idempotency key is kept, in ms: a day longer than its turn."""
    return int(request.deadline_seconds * 1000) + int(settings.retention_seconds * 1000) + _DAY_MS

"""What a request says to ``submit.lua``. Pure but for the turn's epoch, which is drawn."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api_client.contract.counters import label
from api_client.contract.settings import Settings
from api_client.contract.tasks import first_link
from api_client.contract.turn import TurnRequest

_DAY_MS = 86_400_000


def arguments(request: TurnRequest, settings: Settings, *, keyed: bool, replay_of: str) -> list[Any]:
    """ARGV[4...] of ``submit.lua``; ``keyed`` says that the request came with an idempotency key."""
    cost_budget = int(request.cost_budget_usd * 1e6)
    return [
        request.to_json(),
        secrets.token_hex(6),
        request.owner,
        request.locale,
        int(request.deadline_seconds * 1000),
        request.double_text.value,
        digest(request) if keyed else "",
        keep_key_ms(request, settings),
        request.session_id,
        replay_of,
        request.token_budget,
        cost_budget,
        request.token_budget // request.max_attempts,
        cost_budget // request.max_attempts,
        label(request.model),
        flow_of(request.session_id, settings.flow_version),
        str(first_link(request)),
        int(request.phase is not None),
    ]


def digest(request: TurnRequest) -> str:
    """What tells one request from another that came with the same idempotency key."""
    return hashlib.sha256(replace(request, traceparent="").to_json().encode()).hexdigest()


def keep_key_ms(request: TurnRequest, settings: Settings) -> int:
    """How long an idempotency key is kept, in ms: a day longer than its turn."""
    return int(request.deadline_seconds * 1000) + int(settings.retention_seconds * 1000) + _DAY_MS


def flow_of(session_id: str, versions: Mapping[str, int]) -> str:
    """The flow version of a session: spread by hash as the versions' weights say, so that a session keeps its own."""
    place = int.from_bytes(hashlib.sha256(f"flow {session_id}".encode()).digest()[:8], "big") % sum(versions.values())
    for version, weight in versions.items():
        place -= weight
        if place < 0:
            return version
    raise AssertionError("the weights do not add up to their sum")

"""The arguments of ``submit.lua``. Pure but for the turn's epoch, which is drawn."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Any

from api_client.broker import Announcement
from api_client.contract.counters import label
from api_client.contract.policy import plain_policy
from api_client.contract.question_language import spoken
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import Priority, TurnRequest
from api_client.contract.work import find_work
from api_client.store.commands import Word
from api_client.turns.request_check import escalation_of

_DAY_MS = 86_400_000
#: Fields of a request, each with the setting that fills it in where the request does not name it.
_FILLED = {"validators": "validators", "max_attempts": "max_attempts", "policy": "policy_orders"}


def arguments(
    request: TurnRequest, settings: Settings, link: Link, *, pushed: Announcement | None, keyed: bool, replay_of: str
) -> dict[str, Word]:
    """The arguments of ``submit.lua``.

    ``link`` is the turn's first. ``pushed``: the message that the command pushes itself, where the queues are in the
    same server. ``keyed``: it came with an idempotency key. ``replay_of``: the turn that it repeats, or empty.
    """
    cost_budget = int(request.cost_budget_usd * 1e6)
    tokens, cost = request.reserve
    return {
        "request": request.to_json(),
        "epoch": secrets.token_hex(6),
        "owner": request.owner,
        "locale": request.locale,
        "deadline_ms": int(request.deadline_seconds * 1000),
        "double_text": request.double_text.value,
        "body": digest(request, settings) if keyed else "",
        "key_ms": keep_key_ms(request, settings) if keyed else 0,
        "session_id": request.session_id,
        "replay_of": replay_of,
        "token_budget": request.token_budget,
        "cost_budget": cost_budget,
        "token_reserve": tokens,
        "cost_reserve": cost,
        "model_label": label(request.model),
        "policy_hash": policy_hash(request, settings),
        "flow": request.flow,
        "first_link": str(link),
        "from_claim": int(find_work(request).waits_long),
        "max_attempts": request.max_attempts,
        "key": label(request.key) if request.key else "",
        "message": pushed.message if pushed else "",
        "channel": pushed.channel if pushed else "",
        "event": pushed.event if pushed else "",
        "priority": request.priority or Priority.INTERACTIVE.value,
        "weight": request.weight or 1,
        "most": request.at_once,
    }


def policy_hash(request: TurnRequest, settings: Settings) -> str:
    """The hash of the policy that judges: the file's, or of what the settings say instead of one."""
    if request.applied or not find_work(request).answers_in_text:
        return request.applied.hash if request.applied else ""
    own = settings.of_model(request.model)
    return plain_policy(own.validators, own.policy_orders, own.max_attempts).hash


def asked_of(request: TurnRequest) -> TurnRequest:
    """The request without what its caller did not ask for: a policy file that changed makes no other question of it."""
    blank: dict[str, Any] = {"validators": (), "policy": {}, "max_attempts": 1, "locale": ""}
    filled = request.applied.filled if request.applied else ()
    return replace(
        request,
        traceparent="",
        applied=None,
        flow="",
        template="",
        priority="",
        weight=0,
        at_once=0,
        **{name: blank[name] for name in filled},
    )


def digest(request: TurnRequest, settings: Settings) -> str:
    """Return what tells one request from another that came with the same idempotency key.

    A language that nobody asked for does not count, so that a key outlives a change of HELIX_LOCALE.
    """
    asked = asked_of(request)
    newest_first = reversed([each["content"] for each in request.messages if each.get("role") == "user"])
    if asked.locale == (spoken(newest_first) or settings.locale):
        asked = replace(asked, locale="")
    return hashlib.sha256(asked.to_json().encode()).hexdigest()


def keep_key_ms(request: TurnRequest, settings: Settings) -> int:
    """Return how long an idempotency key is kept, in ms: a day longer than its turn."""
    return int(request.deadline_seconds * 1000) + int(settings.retention_seconds * 1000) + _DAY_MS


def replayed(
    request: TurnRequest, settings: Settings, *, model: str = "", prompt: str = ""
) -> tuple[TurnRequest, frozenset[str]]:
    """The request of a replay, and the fields that stay whatever a policy file gives.

    Another model gets its own rules and attempts where the turn had those of its model; what its caller named stays.

    ``model``: whom to ask instead, ``prompt``: the message instead of the last one; empty for the same.
    """
    request = replace(find_work(request).repeat(request), traceparent="")
    if prompt:
        request = replace(request, messages=(*request.messages[:-1], {**request.messages[-1], "content": prompt}))
    if not model or model == request.model:
        return request, frozenset((*_FILLED, "locale"))
    before, now = settings.of_model(request.model), settings.of_model(model)
    unnamed = [
        name
        for name, setting in _FILLED.items()
        if (name in request.applied.filled if request.applied else getattr(request, name) == getattr(before, setting))
    ]
    changes: dict[str, Any] = {name: getattr(now, _FILLED[name]) for name in unnamed}
    if request.escalation == escalation_of(before):
        changes["escalation"] = None
    return replace(request, model=model, applied=None, template="", **changes), frozenset((*_FILLED, "locale")) - {
        *unnamed
    }

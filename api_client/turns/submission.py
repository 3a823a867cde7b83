"""Builds the arguments of the Lua script ``submit.lua``."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import replace
from typing import Any

from api_client.broker.celery_message import Announcement
from api_client.contract.counters import clean_label
from api_client.contract.question_language import detect_language
from api_client.contract.settings import Settings
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import Priority, TurnRequest
from api_client.contract.work import find_work
from api_client.store.commands import Word
from api_client.store.earlier_messages import split_history

_DAY_MS = 86_400_000


def build_submit_arguments(
    request: TurnRequest, settings: Settings, chain_task: ChainTask, *, announcement: Announcement | None, has_key: bool
) -> tuple[dict[str, Word], list[str]]:
    """Return the named arguments and the list of earlier messages for ``submit.lua``, the script that stores a turn.

    ``announcement`` is the message that the script publishes itself if the queues are in the same server. ``has_key``:
    the caller gave an idempotency key.
    """
    cost_limit = int(request.cost_limit_usd * 1e6)
    tokens, cost = request.reserve
    own, earlier = split_history(request)
    return {
        "request": own.to_json(),
        "epoch": secrets.token_hex(6),
        "owner": request.owner,
        "locale": request.locale,
        "deadline_ms": int(request.deadline_seconds * 1000),
        "double_text": request.double_text.value,
        "body": hash_request(request, settings) if has_key else "",
        "key_ms": int((request.deadline_seconds + settings.retention_seconds) * 1000) + _DAY_MS if has_key else 0,
        "session_id": request.session_id,
        "token_limit": request.token_limit,
        "cost_limit": cost_limit,
        "token_reserve": tokens,
        "cost_reserve": cost,
        "model_label": clean_label(request.model),
        "labels": json.dumps({name: label for name, label in request.labels.items() if label}),
        "first_link": str(chain_task),
        "from_claim": int(find_work(request).waits_long),
        "max_attempts": request.max_attempts,
        "key": clean_label(request.key) if request.key else "",
        "message": announcement.message if announcement else "",
        "channel": announcement.channel if announcement else "",
        "event": announcement.event if announcement else "",
        "priority": request.priority or Priority.INTERACTIVE.value,
        "weight": request.weight or 1,
        "most": request.at_once,
        "head": earlier[0] if earlier else "",
    }, earlier


def strip_filled(request: TurnRequest) -> TurnRequest:
    """Return the request as the caller sent it, without the fields filled in by admission checks."""
    blank: dict[str, Any] = {"validators": (), "policy": {}, "max_attempts": 1, "locale": ""}
    asked = {name: data for name, data in request.attached.items() if name not in request.filled}
    return replace(
        request,
        traceparent="",
        attached=asked,
        filled=(),
        labels={},
        template="",
        priority="",
        weight=0,
        at_once=0,
        **{name: blank[name] for name in request.filled if name in blank},
    )


def hash_request(request: TurnRequest, settings: Settings) -> str:
    """Return a hash of a request, to detect the reuse of an idempotency key for a different request.

    A default language does not count, so that a key survives a change of HELIX_LOCALE.
    """
    asked = strip_filled(request)
    newest_first = reversed([each["content"] for each in request.messages if each.get("role") == "user"])
    if asked.locale == (detect_language(newest_first) or settings.locale):
        asked = replace(asked, locale="")
    return hashlib.sha256(asked.to_json().encode()).hexdigest()

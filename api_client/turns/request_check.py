"""Refuses impossible requests before anything is written."""

from __future__ import annotations

import re

from api_client.contract.admission import Admission, Submission
from api_client.contract.errors import BadRequest
from api_client.contract.limits import MAX_ATTEMPTS, MAX_COST_USD, MAX_DEADLINE_SECONDS
from api_client.contract.policy import Action
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.contract.visible_text import has_visible_text
from api_client.contract.work import find_work

_FIELDS = ("messages", "session_id", "owner", "locale", "metadata", "key", "work_data", "traceparent")
_HALF = re.compile("[\ud800-\udfff]")
_LONGEST_ID = 255


class RequestCheck(Admission):
    """Refuses submitted requests that can never succeed, such as requests for an unknown model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def admit(self, turn: Submission) -> TurnRequest:
        check_request(turn.request, self._settings)
        return turn.request


def check_request(request: TurnRequest, settings: Settings) -> None:
    """Raise ``BadRequest`` for a request that can never succeed, such as a request for an unknown model.

    The kind of work may raise another ``HelixError``.
    """
    if request.model not in settings.models:
        known = ", ".join(settings.models)
        raise BadRequest(f"unknown model {request.model[:80]!r}; known: {known}", param="model", code="model_not_found")
    for name in _FIELDS:
        if (value := getattr(request, name)) and not _can_be_stored(value):
            raise BadRequest(f"{name}: NUL and half a surrogate pair are no characters", param=name)
    if not request.messages or request.messages[-1].get("role") != "user":
        raise BadRequest("the last message must be the user's", param="messages")
    if not has_visible_text(request.messages[-1]["content"]):
        raise BadRequest("the last message is empty", param="messages", code="empty_message")
    if not 1 <= request.max_attempts <= MAX_ATTEMPTS:
        raise BadRequest(f"max_attempts must be from 1 to {MAX_ATTEMPTS}", param="max_attempts")
    if not 0 < request.deadline_seconds <= MAX_DEADLINE_SECONDS:
        raise BadRequest(
            f"deadline_seconds must be above 0 and at most {MAX_DEADLINE_SECONDS:g}", param="deadline_seconds"
        )
    if request.token_limit < 0 or not 0 <= request.cost_limit_usd <= MAX_COST_USD:
        raise BadRequest(f"limits must be at least 0 and at most {MAX_COST_USD:.15g} dollars", param="token_limit")
    if request.policy:
        _check_policy(request)
    find_work(request).check(request)
    if not request.session_id or len(request.session_id) > _LONGEST_ID:
        raise BadRequest(f"session_id must have 1 to {_LONGEST_ID} characters", param="session_id")


def _can_be_stored(value: object) -> bool:
    if isinstance(value, str):
        return "\0" not in value and (value.isascii() or not _HALF.search(value))
    if isinstance(value, dict):
        return all(map(_can_be_stored, (*value, *value.values())))
    return not isinstance(value, tuple | list) or all(map(_can_be_stored, value))


def _check_policy(request: TurnRequest) -> None:
    for validator, order in request.policy.items():
        if validator not in request.validators:
            active = ", ".join(request.validators) or "none"
            message = f"policy: {validator[:80]!r} is not an active validator; active: {active}"
            raise BadRequest(message, param="policy")
        if not order or (wrong := [action for action in order if action not in list(Action)]):
            named = f"not {wrong[0][:80]!r}" if order else "not nothing"
            raise BadRequest(f"policy: must order some of {', '.join(Action)}, {named}", param=f"policy.{validator}")

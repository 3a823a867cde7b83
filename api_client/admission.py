"""What is refused before anything is written: requests that can never work."""

from __future__ import annotations

from api_client.contract.errors import BadRequest
from api_client.contract.settings import Settings
from api_client.contract.turn import DEFAULT_VALIDATORS, TurnRequest

_MOST_ATTEMPTS, _LONGEST_SECONDS, _LONGEST_ID, _HIGHEST_COST = 20, 604_800.0, 255, 1e6


def check(request: TurnRequest, settings: Settings) -> None:
    """Refuse what can never work, before anything is written.

    Raises:
        BadRequest: names the field.
    """
    if request.model not in settings.models:
        known = ", ".join(settings.models)
        raise BadRequest(f"unknown model {request.model[:80]!r}; known: {known}", param="model", code="model_not_found")
    if not request.messages or request.messages[-1].get("role") != "user":
        raise BadRequest("the last message must be the user's", param="messages")
    if not request.prompt.strip():
        raise BadRequest("the last message is empty", param="messages")
    if not 1 <= request.max_attempts <= _MOST_ATTEMPTS:
        raise BadRequest(f"max_attempts must be from 1 to {_MOST_ATTEMPTS}", param="max_attempts")
    if not 0 < request.deadline_seconds <= _LONGEST_SECONDS:
        raise BadRequest(f"deadline_seconds must be above 0 and at most {_LONGEST_SECONDS:g}", param="deadline_seconds")
    if request.token_budget < 0 or not 0 <= request.cost_budget_usd <= _HIGHEST_COST:
        raise BadRequest(f"budgets must be at least 0 and at most {_HIGHEST_COST:g} dollars", param="token_budget")
    unknown = sorted(set(request.validators) - {*settings.validators, *DEFAULT_VALIDATORS})
    if unknown:
        known = ", ".join(dict.fromkeys([*settings.validators, *DEFAULT_VALIDATORS]))
        raise BadRequest(f"unknown validator {unknown[0][:80]!r}; known: {known}", param="validators")
    if not request.session_id or len(request.session_id) > _LONGEST_ID:
        raise BadRequest(f"session_id must have 1 to {_LONGEST_ID} characters", param="session_id")

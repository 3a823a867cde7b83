"""``/v1/pauses``: what is paused, and pausing and resuming. Everybody with a key may look; operators change."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.audit import by_key
from api_client.pauses.pause import WHATS, Pause
from api_client.web.bodies.body import read_object
from api_client.web.errors import ApiError, bad_request, shown
from api_client.web.identity.access import Asker, Caller, require_operator
from api_client.web.relay import RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/pauses")

_TEXTS = ("what", "name", "reason")
_TIMES = ("seconds", "until")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["what"],
                    "properties": {
                        "what": {"enum": list(WHATS)},
                        "name": {"type": "string"},
                        "reason": {"type": "string"},
                        "seconds": {"type": "number"},
                        "until": {"type": "number"},
                    },
                }
            }
        },
    }
}


@router.get("", response_model=None)
async def list_pauses(relay: RelayOf, caller: Asker) -> Response:
    """What is paused, and which breakers are open. Keys, owners and who paused it are shown to operators only."""
    found = await relay.client.pauses.in_force()
    if not caller.operator:
        found = [each for each in found if each.what not in {"key", "owner"}]
    data = [each.to_dict() if caller.operator else {**each.to_dict(), "by": ""} for each in found]
    return JSON({"object": "list", "data": data, "held_turns": await relay.client.pauses.held()})


@router.post("", response_model=None, openapi_extra=_BODY)
async def pause(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Pause something. Again: the new reason and end count."""
    _require_operator(caller)
    body = await read_object(request, relay.settings.max_body_bytes)
    if unknown := sorted(set(body) - {*_TEXTS, *_TIMES}):
        known = ", ".join((*_TEXTS, *_TIMES))
        raise bad_request(f"{shown(unknown[0])}: no such field; known: {known}", param=unknown[0][:80])
    what, name, reason = (_text(body, each) for each in _TEXTS)
    seconds, until = (_number(body, each) for each in _TIMES)
    if seconds and until:
        raise bad_request("seconds or until, not both", param="until")
    begun = Pause(what=what, name=name, reason=reason, until=until, by=by_key(caller.owner))
    return JSON((await relay.client.pauses.pause(begun, seconds=seconds)).to_dict(), 201)


@router.delete("/{what}", response_model=None)
async def resume_intake(what: str, relay: RelayOf, caller: Asker) -> Response:
    """End the pause of the intake."""
    return await _resume(what, "", relay, caller)


@router.delete("/{what}/{name:path}", response_model=None)
async def resume(what: str, name: str, relay: RelayOf, caller: Asker) -> Response:
    """End a pause; of a model also its open breaker. What was not paused stays so."""
    return await _resume(what, name, relay, caller)


async def _resume(what: str, name: str, relay: RelayOf, caller: Caller) -> Response:
    _require_operator(caller)
    ended = await relay.client.pauses.resume(what, name, by=by_key(caller.owner))
    return JSON({"what": what, "name": name, "resumed": ended})


def _require_operator(caller: Caller) -> None:
    require_operator(caller)
    if not caller.operator:
        raise ApiError(403, "only an operator pauses and resumes", code="operators_only")


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise bad_request(f"{name}: must be a text, not {shown(value)}", param=name, code="invalid_type")
    return value


def _number(body: dict[str, Any], name: str) -> float:
    value = body.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise bad_request(f"{name}: must be a number of seconds, not {shown(value)}", param=name, code="invalid_type")
    return float(value)

"""``/v1/notices``: calls for help that wait or were given up, sending those again and dropping them. For operators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api_client.audit import by_key
from api_client.contract.values.notices import Entry
from api_client.web.bodies.body import read_object
from api_client.web.errors import ApiError, bad_request, shown
from api_client.web.identity.access import Asker, Caller, require_operator
from api_client.web.relay import Relay, RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/notices")

#: Notices in one answer, at most.
_MOST = 1000
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "notice_ids": {"type": "array", "items": {"type": "string"}},
                        "all": {"type": "boolean"},
                    },
                }
            }
        },
    }
}
Limit = Annotated[int, Query(ge=1, le=_MOST)]


@router.get("", response_model=None)
async def list_waiting(relay: RelayOf, caller: Asker, limit: Limit = 100) -> Response:
    """What is waiting to be sent, the next one first."""
    _require_reader(caller)
    return await _listed(relay, await relay.client.notices.waiting(limit))


@router.get("/dead", response_model=None)
async def list_given_up(relay: RelayOf, caller: Asker, limit: Limit = 100) -> Response:
    """What nobody took for a day, the newest first."""
    _require_reader(caller)
    return await _listed(relay, await relay.client.notices.given_up(limit))


@router.post("/dead/resend", response_model=None, openapi_extra=_BODY)
async def resend(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Send notices that were given up for another day, under the same ids. All of them or none."""
    _require_operator(caller)
    named = await _named(request, relay)
    return JSON({"resent": await relay.client.notices.send_again(named, by=by_key(caller.owner))})


@router.post("/dead/drop", response_model=None, openapi_extra=_BODY)
async def drop(request: Request, relay: RelayOf, caller: Asker) -> Response:
    """Take notices off the list of those that were given up."""
    _require_operator(caller)
    named = await _named(request, relay)
    return JSON({"dropped": await relay.client.notices.drop(named, by=by_key(caller.owner))})


async def _listed(relay: Relay, entries: list[Entry]) -> Response:
    counts = await relay.client.notices.counts()
    data = [{"object": "notice", **entry.to_dict()} for entry in entries]
    return JSON({"object": "list", "data": data, "waiting": counts.waiting, "given_up": counts.given_up})


async def _named(request: Request, relay: Relay) -> list[str]:
    """The notices that a body names; none: it says ``all``."""
    body = await read_object(request, relay.settings.max_body_bytes)
    if unknown := sorted(set(body) - {"notice_ids", "all"}):
        raise bad_request(f"{shown(unknown[0])}: no such field; known: notice_ids, all", param=unknown[0][:80])
    ids, everything = body.get("notice_ids", []), body.get("all", False)
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise bad_request("notice_ids: must be a list of texts", param="notice_ids", code="invalid_type")
    if not isinstance(everything, bool):
        raise bad_request("all: must be true or false", param="all", code="invalid_type")
    if bool(ids) == everything:
        raise bad_request('name notices in notice_ids, or send {"all": true}', param="notice_ids")
    return ids


def _require_reader(caller: Caller) -> None:
    """As on the page: without keys, this machine may look."""
    if not caller.keyless:
        _require_operator(caller)


def _require_operator(caller: Caller) -> None:
    require_operator(caller)
    if not caller.operator:
        raise ApiError(403, "only an operator reads, sends and drops notices", code="operators_only")

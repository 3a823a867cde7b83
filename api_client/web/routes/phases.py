"""``POST /v1/phases``: submit the phases of a phases.yaml as turns that run in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.errors import StoreUnavailable
from api_client.contract.phase import Phase, read_phases
from api_client.contract.phase_checks import PhaseError
from api_client.contract.phase_folders import explain_bad_directory, find_input_problems
from api_client.contract.settings import Settings
from api_client.tracing.trace_spans import select_traceparent
from api_client.turns.phase_requests import build_requests, is_granted, normalise_folder
from api_client.web.bodies.body import body_size, read_object, run_off_loop
from api_client.web.bodies.body_model import Body, read_added_fields, with_added_fields
from api_client.web.bodies.chat_request import read_idempotency_key
from api_client.web.bodies.models import openapi_operation, read_model_body
from api_client.web.errors import ApiError, bad_request, display_value
from api_client.web.identity.access import CurrentCaller, token_required_error
from api_client.web.intake.turn_submission import require_room
from api_client.web.language import Locale
from api_client.web.relay.relay import CurrentRelay
from api_client.web.wire import JSONResponse

router = APIRouter(prefix="/v1/phases")


@with_added_fields
class PhasesBody(Body):
    """The JSON body of a request that submits the phases of a workflow (``/v1/phases``).

    ``read_phases`` validates the phases, like the phases of a file.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["directory", "phases"]})

    directory: str | None = None
    phases: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = None
    model: str | None = None
    locale: Locale | None = None
    deadline_seconds: float | None = None


@router.post("", response_model=None, status_code=202, openapi_extra=openapi_operation(PhasesBody))
async def submit_phases(request: Request, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Submit a turn for each phase and return at once. Only operators may submit gates that run commands."""
    key = read_idempotency_key(request.headers)
    body = read_model_body(PhasesBody, await read_object(request, relay.settings.max_body_bytes))
    directory, locale = body.directory or "", body.locale or ""
    phases = await run_off_loop(lambda: read_phases(body.phases), caller.owner)
    folder = normalise_folder(directory)
    if not (caller.is_operator or caller.keyless or is_granted(relay.settings, folder, caller.key_owner_name)):
        message = (
            f"directory: {display_value(folder)} is not granted to this key; an operator grants it with "
            "HELIX_PHASE_DIRECTORIES=FOLDER=OWNER (docs/WORKFLOW-SYSTEM.md)"
        )
        raise ApiError(403, message, param="directory", code="directory_not_granted")
    commands = any(gate.options.get("command") for phase in phases for gate in phase.quality_gates)
    if commands and not caller.is_operator:
        if caller.keyless:
            raise token_required_error()
        message = "a gate that runs a command: only operators may submit it (or `turns phase run`)"
        raise ApiError(403, message, param="phases", code="operators_only")
    allowed = caller.visible_settings(relay.settings).models
    if refused := [each.model for each in phases if each.model and each.model not in allowed]:
        raise bad_request(f"unknown model {display_value(refused[0])}", param="phases", code="model_not_found")
    model = body.model or next(iter(allowed))
    if model not in allowed:
        raise bad_request(f"unknown model {display_value(model)}", param="model", code="model_not_found")
    attached = read_added_fields(body, caller.visible_settings(relay.settings))
    await asyncio.to_thread(_require_files, relay.settings, phases, folder, caller.owner)
    asked: dict[str, Any] = {
        "owner": caller.owner,
        "directory": directory,
        "model": model,
        "locale": locale,
        "deadline_seconds": body.deadline_seconds or 0.0,
        "attached": attached,
        "operator": caller.is_operator,
        "key": caller.key_owner_name,
        "share": caller.slot_share,
        "idempotency_key": key,
        "traceparent": select_traceparent(request.headers.getlist("traceparent")),
    }
    try:
        await require_room(relay, caller, locale, count=len(phases), size=body_size(request))
    except ApiError:  # a refusal must not hide turns that were acknowledged before
        if not await relay.client.phases.is_repeated(phases, **asked):
            raise
    turn_ids = await relay.client.phases.submit_phases(phases, **asked)
    with suppress(StoreUnavailable):  # stored already; a failure to count is not worth an error
        await relay.client.allowances.note_unfinished(caller.owner, caller.limits, turn_ids)
    turns = [
        {"phase": phase.id, "turn_id": turn_id, "url": f"/v1/turns/{turn_id}"}
        for phase, turn_id in zip(phases, turn_ids, strict=True)
    ]
    return JSONResponse({"object": "list", "data": turns}, 202)


def _require_files(settings: Settings, phases: Sequence[Phase], directory: str, owner: str) -> None:
    root = settings.root.resolve()
    if problem := explain_bad_directory(root, directory):
        raise bad_request(f"directory: {problem}", param="directory")
    if problems := find_input_problems(
        root, phases, build_requests(phases, settings, directory=directory, owner=owner)
    ):
        raise PhaseError(problems)

"""The field ``escalation``: what happens after all attempts have failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ConfigDict

from api_client.contract.settings import Settings
from api_client.interruptions.escalation_admission import default_escalation
from api_client.web.bodies.body_model import Body, BodyField
from api_client.web.errors import bad_request, display_value


class EscalationBody(Body):
    """The escalation options in the body of a request. Missing fields take their values from the settings."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    runs: int | None = None
    human: bool | None = None
    timeout_seconds: float | None = None
    default: str | None = None


def _read_escalation(wanted: EscalationBody, settings: Settings) -> dict[str, Any]:
    """Return the escalation to attach to the request. Missing fields follow the settings.

    Raises ``ApiError``: 400 ``model_not_found``, so that a key reaches only its own models.
    """
    if wanted.model and wanted.model not in settings.models:
        message = f"escalation.model: unknown model {display_value(wanted.model)}; known: {', '.join(settings.models)}"
        raise bad_request(message, param="escalation.model", code="model_not_found")
    return replace(default_escalation(settings), **wanted.model_dump(exclude_none=True)).attached


FIELD = BodyField("escalation", EscalationBody, _read_escalation)

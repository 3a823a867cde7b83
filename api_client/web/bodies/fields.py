"""The fields of a body that mean something by the settings only: what they say, or why they are refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from api_client.contract.escalation import Escalation
from api_client.contract.offered import askable, not_offered
from api_client.contract.settings import Settings
from api_client.turns.admission import escalation_of
from api_client.web.bodies.models import EscalationBody
from api_client.web.errors import ApiError, bad_request, shown


def read_model(model: Any, settings: Settings) -> str:
    """The model that is asked for.

    Raises:
        ApiError: 400 when it is not a name; as ``known_model``.
    """
    if not isinstance(model, str) or not model:
        allowed = ", ".join(settings.models)
        raise bad_request(f"model: must be one of {allowed}; got {shown(model)}", param="model")
    return known_model(model, settings)


def known_model(model: str, settings: Settings) -> str:
    """The model, if it is offered here.

    Raises:
        ApiError: 404 ``model_not_found``.
    """
    if model not in settings.models:
        message = f"the model {shown(model)} does not exist here; there is: {', '.join(settings.models)}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return model


def read_validators(
    names: Sequence[Any] | None, settings: Settings, of_policy: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The validators that are asked for, each once; the active ones of the settings when none are named.

    ``of_policy``: the rules that a policy lets a request name, where there is one.

    Raises:
        ApiError: 400 ``unknown_validator``.
    """
    if names is None:
        return settings.validators
    offered = of_policy or askable(settings.validators)
    for index, name in enumerate(names):
        if name not in offered:
            wrong = not_offered(name, offered) if isinstance(name, str) else f"must be a name; got {shown(name)}"
            message = f"validators[{index}]: {wrong}"
            raise bad_request(message, param=f"validators[{index}]", code="unknown_validator")
    return tuple(dict.fromkeys(names))


def read_escalation(wanted: EscalationBody | None, settings: Settings) -> Escalation | None:
    """The escalation a request asks for; what it leaves out is as the settings say.

    Raises:
        ApiError: 400 ``model_not_found``: else a key could reach models it may not use.
    """
    if wanted is None:
        return None
    if wanted.model and wanted.model not in settings.models:
        message = f"escalation.model: unknown model {shown(wanted.model)}; known: {', '.join(settings.models)}"
        raise bad_request(message, param="escalation.model", code="model_not_found")
    return replace(escalation_of(settings), **wanted.model_dump(exclude_none=True))


def check_plain_text(form: Any) -> None:
    """Refuse a wish for another form than text: who asked for a schema would take the prose for it.

    Raises:
        ApiError: 400 ``unsupported_parameter``.
    """
    if form is not None and form != {"type": "text"}:
        message = "response_format: is not supported here; ask for the form in the message, and check it by a validator"
        raise bad_request(message, param="response_format", code="unsupported_parameter")

"""The fields of a request's body, one function each: what a field says, or why it is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from api_client.contract.escalation import Escalation
from api_client.contract.offered import askable, not_offered
from api_client.contract.settings import Settings
from api_client.contract.turn import ACTIONS
from api_client.turns.admission import escalation_of
from api_client.web.errors import ApiError, bad_request, shown, shown_text


def choice(body: Mapping[str, Any], name: str, allowed: tuple[str, ...], default: str) -> str:
    """One of the words ``allowed``; ``default`` when the field is missing.

    Raises:
        ApiError: 400 ``invalid_value``.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in allowed:
        raise bad_request(f"{name}: must be one of {', '.join(allowed)}; got {shown(value)}", param=name)
    return value


def number(
    body: Mapping[str, Any], name: str, low: float, high: float, default: float, *, whole: bool = False
) -> float:
    """A number from ``low`` to ``high``; ``default`` when the field is missing.

    Raises:
        ApiError: 400 ``invalid_value``.
    """
    value: Any = body.get(name)
    if value is None:
        return default
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not (fits and low <= value <= high):
        noun = "whole number" if whole else "number"
        limits = f"{low:g}" if low == high else f"a {noun} from {low:g} to {high:.15g}"
        raise bad_request(f"{name}: must be {limits}; got {shown(value)}", param=name)
    return float(value)


def flag(body: Mapping[str, Any], name: str) -> bool:
    """True or false; false when the field is missing.

    Raises:
        ApiError: 400 ``invalid_type``.
    """
    value = body.get(name)
    if not (value is None or isinstance(value, bool)):
        raise bad_request(f"{name}: must be true or false; got {shown(value)}", param=name, code="invalid_type")
    return bool(value)


def include_usage(body: Mapping[str, Any]) -> bool:
    """True when a stream is to say at its end what was used (``stream_options``).

    Raises:
        ApiError: 400 ``invalid_type``.
    """
    value = body.get("stream_options")
    if not (value is None or isinstance(value, dict)):
        message = f"stream_options: must be an object; got {shown(value)}"
        raise bad_request(message, param="stream_options", code="invalid_type")
    return flag(value or {}, "include_usage")


def read_model(body: Mapping[str, Any], settings: Settings) -> str:
    """The model that is asked for.

    Raises:
        ApiError: 400 when it is not a name; as ``known_model``.
    """
    model = body.get("model")
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


def read_validators(body: Mapping[str, Any], settings: Settings, of_policy: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The validators that are asked for, each once; the active ones of the settings when the field is missing.

    ``of_policy``: the rules that a policy lets a request name, where there is one.

    Raises:
        ApiError: 400 ``unknown_validator`` or ``invalid_type``.
    """
    names = body.get("validators")
    if names is None:
        return settings.validators
    if not isinstance(names, list):
        message = f"validators: must be a list of names; got {shown(names)}"
        raise bad_request(message, param="validators", code="invalid_type")
    offered = of_policy or askable(settings.validators)
    for index, name in enumerate(names):
        if name not in offered:
            wrong = not_offered(name, offered) if isinstance(name, str) else f"must be a name; got {shown(name)}"
            message = f"validators[{index}]: {wrong}"
            raise bad_request(message, param=f"validators[{index}]", code="unknown_validator")
    return tuple(dict.fromkeys(names))


def read_policy(body: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What is tried for each validator's errors; the names are checked when the turn is stored.

    Raises:
        ApiError: 400 ``invalid_type``.
    """
    value = body.get("policy")
    if value is None:
        return {}
    orders = list(value.values()) if isinstance(value, dict) else [None]
    if not all(isinstance(order, list) and all(isinstance(action, str) for action in order) for order in orders):
        message = f"policy: must map validators to lists of {', '.join(ACTIONS)}, not {shown(value)}"
        raise bad_request(message, param="policy", code="invalid_type")
    return {name: tuple(order) for name, order in value.items()}


def read_escalation(body: Mapping[str, Any], settings: Settings) -> Escalation | None:
    """The escalation a request asks for; what it leaves out is as the settings say.

    Raises:
        ApiError: 400 with the field's name.
    """
    value = body.get("escalation")
    if value is None:
        return None
    if not isinstance(value, dict):
        message = f"escalation: must be an object, not {shown(value)}"
        raise bad_request(message, param="escalation", code="invalid_type")
    usual = asdict(escalation_of(settings))
    for name, given in value.items():
        kinds: dict[str, tuple[type, ...]] = {"runs": (int,), "human": (bool,), "timeout_seconds": (int, float)}
        fits = isinstance(given, kinds.get(name, (str,))) and (name == "human" or not isinstance(given, bool))
        if name not in usual or not fits:
            known = ", ".join(usual)
            message = f"escalation.{shown_text(name, 40)}: no such field, or of another type; known: {known}"
            raise bad_request(message, param="escalation")
    if value.get("model") and value["model"] not in settings.models:  # else a key could reach models it may not use
        message = f"escalation.model: unknown model {shown(value['model'])}; known: {', '.join(settings.models)}"
        raise bad_request(message, param="escalation.model", code="model_not_found")
    return Escalation(**(usual | value))


def check_plain_text(body: Mapping[str, Any]) -> None:
    """Refuse a wish for another form than text: who asked for a schema would take the prose for it.

    Raises:
        ApiError: 400 ``unsupported_parameter``.
    """
    wanted = body.get("response_format")
    if wanted is not None and wanted != {"type": "text"}:
        message = "response_format: is not supported here; ask for the form in the message, and check it by a validator"
        raise bad_request(message, param="response_format", code="unsupported_parameter")

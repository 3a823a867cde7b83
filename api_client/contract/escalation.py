"""Escalation of a turn after all attempts failed: first another model, then a person (ADR-025, decision 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.decision import DEFAULTS, DecisionKind
from api_client.contract.errors import BadRequest
from api_client.contract.interruption import MAX_WAIT_SECONDS
from api_client.contract.turn import TurnRequest

MAX_RUNS = 10
NAME = "escalation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """The steps after all attempts of a turn have failed: ask another model, then ask a person.

    An empty ``model`` or 0 ``runs`` skips the other model. If no person answers within ``timeout_seconds``, ``default``
    (reject or approve) is decided.
    """

    model: str = ""
    runs: int = 1
    human: bool = True
    timeout_seconds: float = 86_400.0
    default: str = DecisionKind.REJECT.value

    @classmethod
    def from_request(cls, request: TurnRequest) -> Escalation | None:
        data = request.attached.get(NAME)
        return cls.from_dict(data) if data else None

    @property
    def attached(self) -> dict[str, Any]:
        return {NAME: asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Escalation:
        """Create an escalation from its stored form, ignoring fields of newer versions."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


def check_escalation(escalation: Escalation, models: Mapping[str, str]) -> None:
    """Check an escalation against the known models and the limits. Raises ``BadRequest``."""
    if escalation.model and escalation.model not in models:
        known = ", ".join(models)
        message = f"escalation: unknown model {escalation.model[:80]!r}; known: {known}"
        raise BadRequest(message, param="escalation.model", code="model_not_found")
    if not 0 <= escalation.runs <= MAX_RUNS:
        message = f"escalation: runs must be from 0 (no stage 1) to {MAX_RUNS}, not {escalation.runs}"
        raise BadRequest(message, param="escalation.runs")
    if not 1 <= escalation.timeout_seconds <= MAX_WAIT_SECONDS:
        message = f"escalation: timeout_seconds must be from 1 to {MAX_WAIT_SECONDS:.0f}"
        raise BadRequest(message, param="escalation.timeout_seconds")
    if escalation.default not in DEFAULTS:
        message = f"escalation: default must be one of {', '.join(DEFAULTS)}, not {escalation.default[:80]!r}"
        raise BadRequest(message, param="escalation.default")

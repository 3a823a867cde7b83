"""The admission of escalations, for turns whose attempts have all failed (ADR-025, decision 3)."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.admission import Admission, Submission
from api_client.contract.escalation import NAME, Escalation, check_escalation
from api_client.contract.policy import Action
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.contract.work import find_work


class EscalationAdmission(Admission):
    """Attaches the configured escalation to submitted turns that may need another model or a person."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def admit(self, turn: Submission) -> TurnRequest:
        """Return the request, with the default escalation (who is asked if all attempts fail) if one may be needed.

        Raises ``BadRequest`` if the escalation names an unknown model or breaks a limit.
        """
        request = turn.request
        if (asked := Escalation.from_request(request)) is not None:
            check_escalation(asked, self._settings.models)
        elif find_work(request).hands_on or (
            request.policy and any(Action.ESCALATE in order for order in request.policy.values())
        ):
            found = default_escalation(self._settings.for_model(request.model))
            check_escalation(found, self._settings.models)
            request = replace(request.with_attachment(NAME, found), filled=(*request.filled, NAME))
        return request


def default_escalation(settings: Settings) -> Escalation:
    return Escalation(
        model=settings.escalation_model,
        runs=settings.escalation_runs,
        human=settings.escalation_human == "yes",
        timeout_seconds=settings.escalation_timeout_seconds,
        default=settings.escalation_default,
    )

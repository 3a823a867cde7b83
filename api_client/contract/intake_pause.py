"""The refusal of a turn while the intake is paused."""

from __future__ import annotations

from api_client.contract.errors import HelixError


class IntakePaused(HelixError):
    """Raised when an operator has paused the acceptance of new turns; ``until`` is in seconds since the epoch."""

    code = "intake_paused"

    def __init__(self, reason: str, until: float) -> None:
        super().__init__(f"no new turns are taken: {reason or 'the intake is paused'}")
        self.reason = reason
        self.until = until

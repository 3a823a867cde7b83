"""The error for a turn that exceeds a budget."""

from __future__ import annotations

from api_client.contract.errors import NotAdmitted


class BudgetExceeded(NotAdmitted):
    """Raised when a daily budget has no room left for a turn.

    ``seconds`` is the advised delay before retrying; ``resets_at`` is in seconds since the epoch.
    """

    code = "budget_exceeded"

    def __init__(
        self, scope: str, spent_usd: float, aside_usd: float, limit_usd: float, resets_at: float, seconds: float
    ) -> None:
        kind = scope.partition(":")[0]
        aside = f", {aside_usd:.4f} set aside for turns at work" if aside_usd else ""
        super().__init__(
            f"today's budget ({kind}) has no room: {spent_usd:.4f} of {limit_usd:.4f} dollars spent{aside}",
            max(1.0, seconds),
        )
        self.kind = kind
        self.spent_usd = spent_usd
        self.limit_usd = limit_usd
        self.resets_at = resets_at

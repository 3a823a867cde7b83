"""The refusal of a turn while the intake is paused."""

from __future__ import annotations

import math
import time
from functools import partial

from api_client.contract.errors import IntakeClosed
from api_client.contract.pause_events import describe_pause


class IntakePaused(IntakeClosed):
    """Raised when an operator has paused the intake of new turns. ``until`` is in seconds since the epoch."""

    code = "intake_paused"

    def __init__(self, reason: str, until: float) -> None:
        super().__init__(f"no new turns are taken: {reason or 'the intake is paused'}")
        self.reason = reason
        self.until = until
        self.retry_after = max(1, math.ceil(until - time.time())) if until else IntakeClosed.retry_after
        self.explain = partial(describe_pause, reason, until)

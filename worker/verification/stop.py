"""Being asked to stop, as gates and verifier see it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Stopping:
    """A stop request outside a turn: it comes when ``reason`` is set, and there is no lease that could end."""

    reason: str = ""
    lease_ends: float = math.inf


class Stopped(Exception):
    """The check was asked to stop, so there is nothing to report; the message is the reason. No process is left."""

"""Delays of a turn after a temporary error."""

from __future__ import annotations

import math
from dataclasses import dataclass

from api_client.contract.completion import Completion, ErrorKind

#: Hand-overs of an attempt before the turn fails, and the longest delay after a hand-over, in seconds.
MOST_HAND_OVERS, _LONGEST_SECONDS = 8, 60.0


def hand_over_delay(number: int) -> float:
    """Return how many seconds to wait before an attempt is handed to another worker for the ``number``-th time."""
    return min(2.0 ** (number - 1), _LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The limits for the retry delays of a turn, in seconds.

    ``first`` is the delay after the first temporary error and doubles with each further one; ``left`` is the time until
    the turn's deadline.
    """

    first: float
    left: float = math.inf


def delay_after(completion: Completion, errors_before: int, delays: Delays) -> float | None:
    """Return how many seconds to wait before retrying a run, or None if the service demands too long a wait."""
    if completion.kind is ErrorKind.SESSION_LOST:
        return 0.0
    asked = completion.retry_after
    if asked >= delays.left:
        return None
    if completion.busy:  # the store delays all turns of a limited service, including this turn
        return 0.0
    return asked or delays.first * 2**errors_before

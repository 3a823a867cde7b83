"""The wait of a turn after a passing error. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from api_client.contract.completion import Completion, ErrorKind

#: Hand-overs of an attempt that are forgiven, and the longest wait after one, in seconds.
MOST_HAND_OVERS, _LONGEST_SECONDS = 8, 60.0


def hand_over_delay(number: int) -> float:
    """Seconds until an attempt runs again that its worker could not keep for the ``number``-th time, counted from 1.

    1, 2, 4, ... and never more than 60: a worker that is overloaded gets no better by being asked at once.
    """
    return min(2.0 ** (number - 1), _LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays in seconds.

    Attributes:
        first: the first one after a passing error; it doubles. left: the time until the turn's deadline.
    """

    first: float
    left: float = math.inf


def delay_after(completion: Completion, errors_before: int, delays: Delays) -> float | None:
    """Seconds until a passing error is tried again; None when the service asks for more than the turn has left."""
    if completion.kind is ErrorKind.SESSION_LOST:
        return 0.0
    asked = completion.retry_after
    if asked >= delays.left:
        return None
    if completion.busy:  # the store holds back all turns of this service (pauses.lua), this one too
        return 0.0
    return asked or delays.first * 2**errors_before

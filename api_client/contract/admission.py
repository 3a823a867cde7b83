"""The admission port: checks that a turn passes, in order, before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from api_client.contract.turn import TurnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A turn that a caller has submitted but that is not stored yet."""

    turn_id: str
    request: TurnRequest
    idempotency_key: str = ""


class Admission:
    """Base class of admission checks for submitted turns.

    A process may die after any call, and a client repeats a submission with the same ``turn_id``: each method must be
    idempotent, and whatever ``hold`` reserves must expire when no turn follows.
    """

    #: A setting without which a built-in check has nothing to do.
    setting: ClassVar[str]

    async def admit(self, turn: Submission) -> TurnRequest:
        """Check a turn and return its request, perhaps with added fields. Raise a ``HelixError`` to refuse the turn."""
        return turn.request

    async def hold(self, turns: Sequence[Submission]) -> None:
        """Reserve what all these turns need, such as parts of a quota, or refuse them all with a ``HelixError``."""

    async def admit_run(self, turn_id: str, request: TurnRequest, model: str) -> None:
        """Allow another agent run of a stored turn with this model, or raise a ``HelixError``."""

    async def release(self, turn: Submission) -> None:
        """Release whatever ``hold`` reserved for a turn that could not be stored."""

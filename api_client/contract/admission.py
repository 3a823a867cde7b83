"""The admission port: checks that a turn passes, in order, before it is stored.

The client (``api_client.client``) makes the list; the submitter runs it and knows none of them. An installed package
adds one by an entry point of the group ``helix_turns.admissions``: a callable that takes the ``Store``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api_client.contract.turn import TurnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A turn that somebody wants to have stored."""

    turn_id: str
    request: TurnRequest
    idempotency_key: str = ""


class Admission:
    """One check. Override what you need; raise a ``HelixError`` to refuse: ``NotAdmitted``, if it is ``admit_run``.

    A process may die after any of these calls, and a client repeats a submit under the same ``turn_id``. So each method
    must do the same when it is called again, and what ``hold`` took must come free by itself where no turn follows.
    """

    async def admit(self, turn: Submission) -> TurnRequest:
        """Return the request to store: as it came, or completed. The first thing that is called for a turn."""
        return turn.request

    async def hold(self, turns: Sequence[Submission]) -> None:
        """Take what these turns need, such as a part of a quota: for all of them or for none."""

    async def admit_run(self, turn_id: str, request: TurnRequest, model: str) -> None:
        """Return if a stored turn's agent may run once more, by ``model``. A worker asks before each run."""

    async def release(self, turn: Submission) -> None:
        """Give back what ``hold`` took: the turn is not stored, since a later check or the store refused it."""

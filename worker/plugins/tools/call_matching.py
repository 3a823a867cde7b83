"""Finds the recorded call that a repeated delivery makes again, so that nothing is written twice. Pure.

A call that changed something is not repeated after a crash: the agent gets the recorded result. Calls of earlier
deliveries are matched in order, each at most once; two equal writes of one delivery are two writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any


class CallState(StrEnum):
    """The state of a call."""

    #: It left for the server, and no result is known.
    BEGUN = "begun"
    #: Its result is known; errors of the tool are results.
    DONE = "done"
    #: The server refused it or could not be reached, so nothing was changed.
    FAILED = "failed"
    #: The agent got the result of an earlier delivery's call.
    RECORDED = "recorded"
    #: It was under way when a process died or the server fell silent: nobody knows whether it was executed.
    UNKNOWN = "unknown"
    #: A person is asked.
    ASKED = "asked"
    #: The policy or a person denied it.
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A call as the call log has it.

    Attributes:
        number: of the call within its delivery, from 1.
        gateway: nonce of the gateway process that served it.
        digest: hash of server, tool and arguments.
        earlier: row of the earlier call that answers for this one; empty for none.
        at, took_ms: when it came (epoch seconds), and how long the server took.
        result_bytes: size of the result.
        approved: a person approved it.
    """

    number: int
    attempt: int
    delivery: int
    gateway: str
    server: str
    tool: str
    digest: str
    read_only: bool = False
    state: CallState = CallState.BEGUN
    earlier: str = ""
    at: float = 0.0
    took_ms: int = 0
    result_bytes: int = 0
    is_error: bool = False
    approved: bool = False
    arguments: str = ""

    @property
    def name(self) -> str:
        """Return the row's name within its turn, which sorts in the order of the calls."""
        return f"{self.delivery:05d}-{self.number:05d}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CallRow:
        """Create a row from its dictionary; fields of later versions are left out."""
        known = {each.name for each in fields(cls)}
        row = cls(**{name: value for name, value in data.items() if name in known})
        return replace(row, state=CallState(row.state))


def _may_be_executed(row: CallRow) -> bool:
    """Return whether a call was or may have been executed, rather than answered by an earlier call's row."""
    return row.state in {CallState.BEGUN, CallState.DONE} or (row.state is CallState.UNKNOWN and not row.earlier)


def find_recorded_call(rows: Sequence[CallRow], call: CallRow, known_until: int) -> CallRow | None:
    """Return the recorded call that ``call`` repeats, or None if the call is new.

    ``known_until`` is the delivery that the agent remembers by its session: it makes no call up to there again.
    """
    if call.read_only:
        return None
    used = {row.earlier for row in rows if _same_run(row, call) and row.earlier}
    for row in sorted(rows, key=lambda row: row.name):
        if row.attempt != call.attempt or row.digest != call.digest or not _may_be_executed(row):
            continue
        if _is_lost(row, call) and row.delivery > known_until and row.name not in used:
            return row
    return None


def was_unknown(rows: Sequence[CallRow], call: CallRow) -> bool:
    """Return whether this run was told that the outcome of an equal call is unknown."""
    return any(row.state is CallState.UNKNOWN and row.digest == call.digest and _same_run(row, call) for row in rows)


def _same_run(row: CallRow, call: CallRow) -> bool:
    return (row.attempt, row.delivery) == (call.attempt, call.delivery)


def _is_lost(row: CallRow, call: CallRow) -> bool:
    """Return whether the agent may not know this row's result: a delivery or a gateway ended before it."""
    if row.delivery != call.delivery:
        return row.delivery < call.delivery
    return row.gateway != call.gateway and row.state is CallState.BEGUN

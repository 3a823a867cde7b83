"""Finds the recorded call that a repeated delivery makes again, so that nothing is written twice.

Calls of earlier deliveries are matched in order, each at most once; two equal writes of one delivery are two writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from api_client.contract.tool_call_row import CallRow, CallState

_EXECUTED = frozenset({CallState.BEGUN, CallState.DONE})


def _may_be_executed(row: CallRow) -> bool:
    """Return True if a call was or may have been executed. A call answered from an earlier row was not."""
    return row.state in _EXECUTED or (row.state is CallState.UNKNOWN and not row.earlier)


def find_known_deliveries(rows: Sequence[CallRow], continues: int) -> frozenset[int]:
    """Return the deliveries whose tool results the agent remembers, if its session continues that of ``continues``."""
    known = set[int]()
    before = {row.delivery: row.continues for row in rows}
    while continues:
        known.add(continues)
        continues = before.get(continues, 0)
    return frozenset(known)


def find_recorded_call(
    rows: Sequence[CallRow], call: CallRow, known: Collection[int], *, fresh: bool = False
) -> CallRow | None:
    """Return the recorded call that ``call`` repeats, or None if the call is new.

    ``known`` has the deliveries whose results the agent remembers, so it repeats none of their calls. A ``fresh`` agent
    remembers no earlier attempt.
    """
    own = [row for row in rows if row.digest == call.digest and (fresh or row.attempt == call.attempt)]
    lost = [row for row in own if _may_be_executed(row) and _is_lost(row, call, known)]
    told = [row for row in own if not row.unseen and (row.delivery == call.delivery or row.delivery in known)]
    used = {row.earlier for row in told}
    left = [row for row in lost if row.name not in used and not (row.read_only and call.read_only)]
    return min(left, key=lambda row: row.name, default=None)


def was_unknown(rows: Sequence[CallRow], call: CallRow) -> bool:
    """Return True if this run's agent was already told that the outcome of an equal write is unknown."""
    told = {(row.delivery, row.digest) for row in rows if row.state is CallState.UNKNOWN}
    return not call.read_only and (call.delivery, call.digest) in told


def _is_lost(row: CallRow, call: CallRow, known: Collection[int]) -> bool:
    """Return True if the agent may not know a call's result, because its delivery, gateway or connection ended."""
    if row.delivery == call.delivery:
        return row.unseen or (row.gateway != call.gateway and row.state is CallState.BEGUN)
    return row.unseen or row.delivery not in known or row.state is CallState.BEGUN

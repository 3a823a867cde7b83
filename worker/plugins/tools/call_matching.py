"""Finds the recorded call that a repeated delivery makes again, so that nothing is written twice. Pure.

A call that changed something is not repeated after a crash: the agent gets the recorded result. Calls of earlier
deliveries are matched in order, each at most once; two equal writes of one delivery are two writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.tool_call_row import CallRow, CallState


def _may_be_executed(row: CallRow) -> bool:
    """Return True if a call was or may have been executed. A call answered from an earlier row was not."""
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
    """Return True if the agent has learned in this run that the outcome of an equal call is unknown."""
    return any(row.state is CallState.UNKNOWN and row.digest == call.digest and _same_run(row, call) for row in rows)


def _same_run(row: CallRow, call: CallRow) -> bool:
    return (row.attempt, row.delivery) == (call.attempt, call.delivery)


def _is_lost(row: CallRow, call: CallRow) -> bool:
    """Return True if the agent may not know the result, because the row's delivery or gateway has ended."""
    if row.delivery != call.delivery:
        return row.delivery < call.delivery
    return row.gateway != call.gateway and row.state is CallState.BEGUN

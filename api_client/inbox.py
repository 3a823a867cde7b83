"""What a person needs to decide on a parked turn."""

from __future__ import annotations

from typing import Any

from api_client.contract.turn import AttemptRecord, Turn


def proposal(turn: Turn, attempts: list[AttemptRecord]) -> dict[str, Any]:
    """What there is to decide on: the attempt an approval accepts, its text and its issues."""
    records = {record.number: record for record in attempts}
    best = records.get(turn.best or turn.attempt)
    if best is None:
        return {"proposal": None}
    issues = [dict(issue) for issue in best.remaining or best.issues]
    text = best.mended or best.answer or best.text
    return {"proposal": {"attempt": best.number, "text": text, "issues": issues}}

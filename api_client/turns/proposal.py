"""The proposal about which a person decides."""

from __future__ import annotations

from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.issue import issues_to_dicts
from api_client.contract.session_paths import delivery_name
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from api_client.interruptions.registry import find_question_kind


def build_proposal(turn: Turn, attempts: list[AttemptRecord]) -> dict[str, Any]:
    """Return the answer that a person has to accept or reject, with its attempt, its issues and its files."""
    records = {record.number: record for record in attempts}
    best = records.get(turn.best or turn.attempt)
    asked = turn.interruption
    if best is None or (asked and not find_question_kind(asked.kind).proposes):
        return {"proposal": None}
    issues = issues_to_dicts(best.remaining or best.issues)
    text = best.mended or best.answer or best.text
    files = ""
    if folder := find_work(turn.request).locate_folder(turn.request):
        delivery = delivery_name(turn.turn_id, best.number, best.last_delivery)
        files = str(folder / "attempts" / delivery / "output")
    return {"proposal": {"attempt": best.number, "text": text, "issues": issues, "files": files}}

"""Collects what rules need to know about a run from the agent's machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.turn import Turn
from api_client.contract.validator_names import BUILT_IN
from api_client.contract.work import find_work
from worker.enforcement.rules import RULES, ObservedRun
from worker.runners.base import RunResult
from worker.runners.claude.cli_launch import writable_paths
from worker.turns import folders
from worker.turns.engine_parts import EngineParts


async def collect_evidence(
    parts: EngineParts, turn: Turn, attempt: int, result: RunResult, before: AttemptRecord | None
) -> dict[str, Any]:
    """Collect the facts that validation rules need about a finished run. Return the facts by rule name.

    ``before`` is the record of the same attempt, if the run continued its text.
    """
    try:
        # Plain validators: no entry point is looked up.
        kinds = parts.policies.find_rules(turn) - {*BUILT_IN} if find_work(turn.request).in_session else set()
        rules = [rule for kind in sorted(kinds) if (rule := RULES.get(kind)) and rule.collects]
    except ValueError:  # an installed rule cannot be imported: the validation reports it
        return {}
    if not rules:
        return {}
    folder = folders.locate_own_folder(parts.settings, turn, attempt)
    if result.adopted:
        folder = folders.locate_other_delivery(folder, turn, attempt, result.adopted)
    run = ObservedRun(
        folder=folder,
        root=parts.settings.root,
        writable=tuple(writable_paths(parts.settings)),
        text=result.text,
        tool_calls=result.tool_calls,
        since=turn.created_at,
        redact=parts.redact,
    )

    def collect() -> dict[str, Any]:
        earlier = {rule.kind: before.evidence.get(rule.kind, {}) if before else None for rule in rules}
        found = {rule.kind: rule.collect(replace(run, earlier=earlier[rule.kind])) for rule in rules}
        return {kind: evidence for kind, evidence in found.items() if evidence}

    return await parts.threads.do_file_work(collect)

"""Phases as a kind of work: their Celery tasks and the data of their turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from api_client.contract.counters import counter_field
from api_client.contract.phase import Phase
from api_client.contract.phase_folders import phases_folder
from api_client.contract.tasks import RUN_QUEUE, TaskDeclaration
from api_client.contract.turn import TurnRequest
from api_client.contract.work import WorkKind

PHASE = "phase"
PHASE_RUN = "phase.run"
PHASE_VERIFY = "phase.verify"
_RUN, _VERIFY = "Run the agent for a phase.", "Verify a phase: its gates, then an independent agent."
#: Key of ``work_data``: the turn that must have passed before this one may run; otherwise this one ends without a
#: run.
AFTER = "after"


def make_work_data(phase: Phase, directory: str) -> dict[str, Any]:
    """Return the data that makes a turn run a phase. ``directory`` is relative to HELIX_ROOT."""
    return {"phase": phase.id, "directory": directory, "definition": phase.to_dict()}


def read_turn_phase(request: TurnRequest) -> Phase:
    """Return the phase that a request runs. Raises ``PhaseError`` if the phase is invalid."""
    return Phase.from_dict(request.work_data.get("definition"))


class PhaseWork(WorkKind):
    """The kind of work in which each turn runs one phase of a workflow and produces files."""

    name = PHASE
    tasks: Mapping[str, TaskDeclaration] = {
        PHASE_RUN: TaskDeclaration(RUN_QUEUE, _RUN, follows="asked again", checked_by=PHASE_VERIFY, begins=True),
        PHASE_VERIFY: TaskDeclaration(RUN_QUEUE, _VERIFY, "verifying", "verified again"),
    }
    first = again = PHASE_RUN
    in_session = answers_in_text = False
    waits_long = hands_on = hands_on_incomplete = has_fixed_codes = True

    def check(self, request: TurnRequest) -> None:
        """Check the request's phase. Raises ``PhaseError`` if the phase is invalid."""
        read_turn_phase(request)

    def locate_folder(self, request: TurnRequest) -> PurePosixPath:
        """Return the folder for the phase's files, relative to HELIX_ROOT."""
        return phases_folder(request) / str(request.work_data["definition"]["id"])

    def describe_request(self, request: TurnRequest) -> str:
        """Describe the turn to people by its phase and directory, such as ``build of projects/shop``."""
        return f"{request.work_data.get('phase')} of {request.work_data.get('directory')}"

    def detach_request(self, request: TurnRequest) -> TurnRequest:
        """Return the request without its dependency on the previous turn."""
        data = {name: value for name, value in request.work_data.items() if name != AFTER}
        return replace(request, work_data=data)

    def count_validated(self, decision: str) -> Mapping[str, int]:
        """Return the counter increment for a decision about a verified phase result."""
        return {counter_field("phase.judged", decision): 1}

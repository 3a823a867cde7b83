"""Builds the turn requests for the phases of a phases.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.owners import LOCAL_OWNER
from api_client.contract.phase import Phase
from api_client.contract.phase_checks import explain_bad_folder
from api_client.contract.phase_folders import phase_session
from api_client.contract.phase_work import PHASE, make_work_data
from api_client.contract.question_language import detect_language
from api_client.contract.settings import Settings
from api_client.contract.settings.turn_limits import limit_turn
from api_client.contract.turn import SlotShare, TurnRequest


def normalise_folder(directory: str) -> str:
    """Return the normalised path of a folder with a phases.yaml, relative to HELIX_ROOT.

    Raises ``BadRequest`` if phases may not use a folder of this name.
    """
    if problem := explain_bad_folder(directory):
        raise BadRequest(f"directory: {problem}", param="directory")
    return str(PurePosixPath(directory))


def is_granted(settings: Settings, directory: str, holder: str) -> bool:
    """Return True if HELIX_PHASE_DIRECTORIES allows the owner ``holder`` to run phases in this folder."""
    path = PurePosixPath(directory)
    grants = (entry.partition("=") for entry in settings.phase_directories)
    return any(path.is_relative_to(folder.strip()) and owner.strip() in {"*", holder} for folder, _, owner in grants)


def build_requests(
    phases: Sequence[Phase],
    settings: Settings,
    *,
    directory: str,
    model: str = "",
    owner: str = LOCAL_OWNER,
    locale: str = "",
    deadline_seconds: float = 0.0,
    attached: Mapping[str, Any] | None = None,
    traceparent: str = "",
    operator: bool = False,
    key: str = "",
    share: SlotShare | None = None,
) -> list[TurnRequest]:
    """Build one turn request for each phase of a workflow, in order.

    ``deadline_seconds`` counts for each phase from its first start. ``operator``: gates may run programs without a
    sandbox. Raises ``BadRequest`` if phases may not use the folder.
    """
    folder, share = normalise_folder(directory), share or SlotShare()
    return [
        share.apply_to(
            TurnRequest(
                model=phase.model or model or next(iter(settings.models)),
                messages=({"role": "user", "content": phase.description},),
                session_id=phase_session(folder, owner),
                owner=owner,
                validators=(),
                locale=locale or detect_language([phase.description]) or settings.locale,
                **limit_turn(
                    settings, {"max_attempts": phase.max_attempts, "deadline_seconds": deadline_seconds or None}
                ),
                attached=dict(attached or {}),
                work=PHASE,
                work_data=make_work_data(phase, folder),
                traceparent=traceparent,
                operator=operator,
                key=key,
                metadata={"phase": f"{number} of {len(phases)}"},
            )
        )
        for number, phase in enumerate(phases, 1)
    ]

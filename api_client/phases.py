"""From the phases of a phases.yaml to the requests of their turns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import PurePosixPath

from api_client.admission import escalation_of
from api_client.contract.errors import BadRequest
from api_client.contract.escalation import Escalation
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest

#: A line of a phase's command, which its gates run as the worker's user.
_COMMAND = "command"


def phase_session(directory: str) -> str:
    """The session of a folder: its phases run one at a time, in order, whoever asked for them."""
    return f"phases-{hashlib.sha256(directory.encode()).hexdigest()[:32]}"


def folder_of(directory: str) -> str:
    """The folder of a phases.yaml as it is stored, relative to HELIX_ROOT.

    Raises:
        BadRequest: it is no folder below HELIX_ROOT, by its name alone.
    """
    path = PurePosixPath(directory)
    if not directory or path.is_absolute() or ".." in path.parts or "\\" in directory or not directory.isprintable():
        raise BadRequest(f"directory: must be relative to HELIX_ROOT, not {directory[:80]!r}", param="directory")
    if path.parts[:2] == ("projects", "sessions"):
        raise BadRequest("directory: the sessions' folders are not for phases", param="directory")
    return str(path)


def requests_of(
    phases: Sequence[Phase],
    settings: Settings,
    *,
    directory: str,
    model: str = "",
    owner: str = "local",
    locale: str = "",
    deadline_seconds: float = 0.0,
    escalation: Escalation | None = None,
    traceparent: str = "",
    operator: bool = False,
) -> list[TurnRequest]:
    """One request per phase; which turn each comes ``after`` is known only when that turn is stored.

    ``deadline_seconds`` counts for each phase from its own first start. ``operator``: the caller has an operator's
    right, so that gates may run programs also on a worker without a box.

    Raises:
        BadRequest: the folder is none that phases may be in.
    """
    folder = folder_of(directory)
    return [
        TurnRequest(
            model=phase.model or model or next(iter(settings.models)),
            messages=({"role": "user", "content": phase.description},),
            session_id=phase_session(folder),
            owner=owner,
            validators=(),
            locale=locale or settings.locale,
            max_attempts=phase.max_attempts,
            deadline_seconds=deadline_seconds or settings.deadline_seconds,
            token_budget=settings.token_budget,
            cost_budget_usd=settings.cost_budget_usd,
            escalation=escalation or escalation_of(settings),
            phase=phase.to_dict(),
            directory=folder,
            traceparent=traceparent,
            operator=operator,
            metadata={"phase": f"{number} of {len(phases)}"},
        )
        for number, phase in enumerate(phases, 1)
    ]


def runs_commands(phase: Phase) -> bool:
    """True when a gate of the phase runs a command that its author names."""
    return any(gate.options.get(_COMMAND) for gate in phase.quality_gates)

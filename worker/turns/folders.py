"""Where a turn's files lie: in the folder of its session, or in the folder of its phase."""

from __future__ import annotations

from pathlib import Path

from api_client.contract.settings import Settings
from api_client.contract.turn import AttemptRecord, Turn
from worker.files.workspace import Written, delivery_name, session_directory, written
from worker.turns.phases.phase_folders import phase_directory


def folder_of(settings: Settings, turn: Turn) -> Path:
    """The folder the turn works in; several turns of a session, one after the other, share it.

    Raises:
        SettingsError: the turn is of a phase, and this worker has no such project.
    """
    if turn.request.phase is not None:
        return phase_directory(settings.root, turn)
    return session_directory(settings.sessions_dir, turn.request.session_id)


def delivery_of(turn: Turn, record: AttemptRecord) -> str:
    """The name of the folder an attempt's last delivery wrote in."""
    return delivery_name(turn.turn_id, record.number, record.last_delivery)


def delivery_folder(settings: Settings, turn: Turn, record: AttemptRecord) -> Path:
    """That folder. Raises as ``folder_of``."""
    return folder_of(settings, turn) / "attempts" / delivery_of(turn, record)


def delivered(settings: Settings, turn: Turn, record: AttemptRecord) -> Written:
    """What the attempt's agent wrote into files. Raises as ``folder_of``."""
    return written(delivery_folder(settings, turn, record))

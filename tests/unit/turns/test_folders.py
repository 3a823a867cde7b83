"""Whether agents of a turn may have left something on disk, as a worker that knows its model says, and as another."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.turns.folders import may_be_recorded, works_in_files

SETTINGS = Settings(models={"scripted": "scripted:x.yaml"})
REQUEST = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
TURN = Turn(turn_id="t0-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=REQUEST)


def builds(**runner: Any) -> Any:
    return lambda _model: (SimpleNamespace(**runner), "")


def cannot_build(_model: str) -> Any:
    raise SettingsError(["no such file"])


@pytest.mark.parametrize(
    ("runner", "files", "recorded"),
    [
        ({"needs_folder": True, "adopt": lambda order: None}, True, True),
        ({"needs_folder": True}, True, False),
        ({"needs_folder": False, "adopt": lambda order: None}, False, False),
    ],
    ids=["adopts", "works in files", "talks only"],
)
def test_its_runner_says_what_a_turn_may_have_left(runner: Any, files: bool, recorded: bool) -> None:
    assert works_in_files(SETTINGS, TURN, builds(**runner)) is files
    assert may_be_recorded(SETTINGS, TURN, builds(**runner)) is recorded


@pytest.mark.parametrize(
    ("turn", "runners"),
    [
        (replace(TURN, request=replace(REQUEST, model="of another worker")), builds(needs_folder=False)),
        (replace(TURN, stage=1), builds(needs_folder=False)),
        (TURN, cannot_build),
    ],
    ids=["model of another worker", "escalated", "set up wrongly here"],
)
def test_what_a_worker_does_not_know_may_have_left_anything(turn: Turn, runners: Any) -> None:
    assert works_in_files(SETTINGS, turn, runners)
    assert may_be_recorded(SETTINGS, turn, runners)

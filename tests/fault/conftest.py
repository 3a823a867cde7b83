"""Fixtures for tests that kill processes: a script for the agents, a meeting place, and a judge of the result."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.turn import Turn, TurnState
from tests.fault.matrix import Runs, Stage
from tests.installation import Installation
from tests.support import json_lines

#: The agent says a little, tells that it has begun, and waits for the test's leave before it finishes.
SCRIPT = """
- when: quick
  attempts:
    - - say: "Sofort fertig.\\n\\n<!-- STEP: done -->"
- when: held
  attempts:
    - - say: "Ich fange an ... "
      - touch: {meet}/begun
      - wait_for: {meet}/go
      - say: "und bin fertig.\\n\\n<!-- STEP: done -->"
- when: forgetful
  attempts:
    - - say: "Ohne Marker."
    - - say: "Ich fange an ... "
      - touch: {meet}/begun
      - wait_for: {meet}/go
      - say: "und bin fertig.\\n\\n<!-- STEP: done -->"
"""


class Meeting:
    """The files by which a test and its agents signal each other, and the log of agent runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.script = directory / "script.yaml"
        self.script.write_text(SCRIPT.format(meet=directory))
        self.action_log = directory / "action_log.jsonl"

    @property
    def begun(self) -> bool:
        """Return True once an agent is in the middle of its answer."""
        return (self.directory / "begun").exists()

    def settings(self) -> dict[str, Any]:
        """Return the settings with which an installation's agents play the script."""
        return {"models": {"scripted": f"scripted:{self.script}"}, "action_log": str(self.action_log)}

    def go(self) -> None:
        (self.directory / "go").touch()

    def runs(self) -> list[dict[str, object]]:
        """Return the agent runs that were really started."""
        return [line for line in json_lines(self.action_log) if line["event"] == "start"]


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path / "meet")


@pytest.fixture
def scripted(installation: Installation, meeting: Meeting) -> Installation:
    """Provide an installation on the shared broker whose model plays ``SCRIPT``."""
    installation.change(**meeting.settings())
    return installation


@pytest.fixture
def mortal(scripted: Installation) -> Installation:
    """Provide the installation with short leases, for workers that are killed.

    A machine that stutters for more than half a lease may cost a living worker its turn too.
    """
    scripted.change(lease_seconds=3.0)
    return scripted


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[TurnsClient]:
    """Provide a client for the module's ``stage`` or else for ``scripted``, disarming all failpoints afterwards."""
    stage = request.getfixturevalue("stage") if "stage" in request.fixturenames else None
    settings = stage.settings if stage else request.getfixturevalue("scripted").settings
    async with TurnsClient(settings) as made:
        yield made
    if stage:
        stage.disarm()


@pytest.fixture
async def runs(stage: Stage) -> AsyncIterator[Runs]:
    """Provide the record of what was really executed on the module's ``stage``."""
    made = Runs(stage.action_log)
    yield made
    made.close()


async def judged(client: TurnsClient, turn_id: str) -> tuple[Turn, list[Event]]:
    """Return the finished turn and its log after checking what must hold whatever was killed."""
    turn = await client.reader.await_result(turn_id, timeout=60)
    events = [event async for event in client.reader.follow_turn(turn_id) if event is not None]
    assert turn.state is TurnState.FINISHED
    assert [event.seq for event in events] == list(range(1, turn.seq + 1)), "an event is missing or doubled"
    assert [event.kind for event in events].count("turn.finished") == 1
    assert events[-1].final
    assert len({event.epoch for event in events}) == 1
    return turn, events

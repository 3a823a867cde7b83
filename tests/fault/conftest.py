"""What tests with real deaths share: a script the agents play, a place to meet them, and a judge of what came of it."""

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
    """Where the test and its agents meet: files they touch and wait for, and the witness's record."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.script = directory / "script.yaml"
        self.script.write_text(SCRIPT.format(meet=directory))
        self.witness = directory / "witness.jsonl"

    @property
    def begun(self) -> bool:
        """True once an agent is in the middle of its answer."""
        return (self.directory / "begun").exists()

    def settings(self) -> dict[str, Any]:
        """What an installation needs so that its agents play the script."""
        return {"models": {"scripted": f"scripted:{self.script}"}, "witness": str(self.witness)}

    def go(self) -> None:
        (self.directory / "go").touch()

    def runs(self) -> list[dict[str, object]]:
        """The agent runs that were really started."""
        return [line for line in json_lines(self.witness) if line["event"] == "start"]


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path / "meet")


@pytest.fixture
def scripted(installation: Installation, meeting: Meeting) -> Installation:
    """An installation whose model plays ``SCRIPT``, on the shared broker."""
    installation.change(**meeting.settings())
    return installation


@pytest.fixture
def mortal(scripted: Installation) -> Installation:
    """The same for workers that are killed: what they held is soon taken from them.

    A machine that stutters for more than half a lease may cost a living worker its turn too.
    """
    scripted.change(lease_seconds=3.0)
    return scripted


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[TurnsClient]:
    """A client of the ``stage`` that a module sets up, else of ``scripted``. Nothing stays armed behind a test."""
    stage = request.getfixturevalue("stage") if "stage" in request.fixturenames else None
    settings = stage.settings if stage else request.getfixturevalue("scripted").settings
    async with TurnsClient(settings) as made:
        yield made
    if stage:
        stage.disarm()


@pytest.fixture
async def runs(stage: Stage) -> AsyncIterator[Runs]:
    """What was really executed on the ``stage`` a module sets up."""
    made = Runs(stage.witness)
    yield made
    made.close()


async def judged(client: TurnsClient, turn_id: str) -> tuple[Turn, list[Event]]:
    """The finished turn and its log, after checking what must hold whatever was killed."""
    turn = await client.reader.await_result(turn_id, timeout=60)
    events = [event async for event in client.reader.follow_turn(turn_id) if event is not None]
    assert turn.state is TurnState.FINISHED
    assert [event.seq for event in events] == list(range(1, turn.seq + 1)), "an event is missing or doubled"
    assert [event.kind for event in events].count("turn.finished") == 1
    assert events[-1].final
    assert len({event.epoch for event in events}) == 1
    return turn, events

"""The crash matrix of answers that are judged in the loop: the run and the verdict on it are stored together.

A worker is killed, frozen or fails between the end of a run and the next link, or the broker is killed. The turn, which
is asked twice, ends once and rightly; nobody judges an answer again that was accepted, and nobody pays for it twice.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.turn import Outcome, Turn
from tests.fault.conftest import judged, message
from tests.fault.matrix import Runs, Stage, left_in_store, resume
from tests.support import wait_until
from worker.files.workspace import delivery_name


@dataclass(frozen=True)
class Boundary:
    """A pass of a point, and during what its delivery is lost; empty when none is."""

    point: str
    at: int
    lost: str

    def __str__(self) -> str:
        return f"{self.point}.{self.at}"


BOUNDARIES = (
    Boundary("run.claimed", 2, "running"),
    Boundary("link.decided", 1, "running"),
    Boundary("validation.started", 1, "running"),
    Boundary("link.decided", 2, "running"),
    Boundary("link.decided", 3, "running"),
    Boundary("validation.started", 2, "running"),
    Boundary("answer.accepted", 1, "running"),
    Boundary("answer.sealed", 1, "validating"),
    Boundary("answer.published", 1, "validating"),
    Boundary("link.decided", 4, "validating"),
    Boundary("turn.finished", 1, ""),
)
ACTIONS = ("kill", "stop", "raise", "broker")
SCRIPT = """
- attempts:
    - - say: "Ohne Marker."
    - - say: "Ohne Marker.\\n\\n<!-- STEP: done -->"
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("at-once")
    with Stage(directory, SCRIPT, models={"scripted": f"inline:{directory}/meet/script.yaml"}) as made:
        made.start(workers=2)
        yield made


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(stage.settings) as made:
        yield made
    stage.disarm()
    stage.broker.start()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
async def test_a_turn_that_is_judged_at_once_ends_once_wherever_it_is_hit(
    boundary: Boundary, action: str, stage: Stage, client: TurnsClient, runs: Runs
) -> None:
    session_id = f"{boundary}-{action}"
    counted = stage.totals()
    go = stage.meet / f"{session_id}.go"
    stage.arm(boundary.point, f"{f'meet:{go}' if action == 'broker' else action}@{boundary.at}")
    turn_id = await client.submitter.submit(message("hello", session_id))
    pid = await stage.fired(boundary.point, boundary.at)
    hit_at = time.monotonic()
    if action == "broker":
        await stage.restart_broker()
        go.touch()
    try:
        turn, events = await judged(client, turn_id)
    finally:
        if action == "stop":
            wake_at = hit_at + 1.2 * stage.settings.lease_seconds
            await wait_until(lambda: time.monotonic() > wake_at)
            resume(pid)
    if action == "stop" and boundary.lost:
        await wait_until(lambda: stage.logged("turn.fenced", turn_id))
        assert (turn, events) == await judged(client, turn_id), "a worker that woke up late changed the turn"
    check(boundary, action, turn, events)
    check_runs(boundary, action, turn, runs)
    last = (await client.reader.attempts(turn_id))[-1]
    delivery = delivery_name(turn_id, last.number, last.last_delivery)
    assert stage.files_of(turn) == (turn.response, delivery)
    assert stage.totals() - counted == stage.folded(turn, events), "the counters are not the fold of the log"
    assert left_in_store(stage, session_id) == []


def check(boundary: Boundary, action: str, turn: Turn, events: list[Event]) -> None:
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2)
    assert turn.response == "Ohne Marker.\n\n<!-- STEP: done -->"
    lost = [event.data["during"] for event in events if event.kind == "attempt.lost"]
    if action != "broker":  # an outage may cost a lease or not
        assert lost == [boundary.lost] * bool(boundary.lost)
    assert turn.delivery == 2 + lost.count("running"), "a crash behind the seal costs no run"
    kinds = [event.kind for event in events]
    assert kinds.count("attempt.completed") == 2
    assert (kinds.count("attempt.rejected"), kinds.count("attempt.accepted")) == (1, 1)


def check_runs(boundary: Boundary, action: str, turn: Turn, runs: Runs) -> None:
    """The agent was started once per delivery; not by one that was hit before it."""
    deliveries, found = set(range(1, turn.delivery + 1)), runs.of(turn.turn_id)
    if action == "broker":
        assert turn.delivery in found <= deliveries
    else:
        assert found == deliveries - ({2} if boundary.point == "run.claimed" else set())

"""The crash matrix of answers that are validated in the worker's loop, where run and verdict are stored together.

A worker is killed, frozen or fails between the end of a run and the next task, or its guard, both or the broker is
killed. The turn, which is asked twice, ends once and correctly; an accepted answer is neither validated nor paid for
again. Where agents have a folder, no run is paid for twice either. CI runs one of the boundaries between which nothing
is stored or written; ``make faults`` runs each of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.session_paths import delivery_name
from api_client.contract.turn import Outcome, Turn
from tests.fault.conftest import judged
from tests.fault.matrix import WHOLE, Runs, Stage, guard_of, left_in_store, resume
from tests.installation import asked as message
from tests.support import alive, wait_until


@dataclass(frozen=True)
class Boundary:
    """A pass of a failpoint, and the task during which its delivery is lost, if any.

    ``heir`` is the next delivery if it can adopt the lost run (agents have a folder), else 0.
    """

    point: str
    at: int
    lost: str
    heir: int = 0

    def __str__(self) -> str:
        return f"{self.point}.{self.at}"


BOUNDARIES = (
    Boundary("run.claimed", 2, "running"),
    Boundary("link.decided", 1, "running", heir=2),
    Boundary("validation.started", 1, "running", heir=2),
    Boundary("link.decided", 2, "running", heir=2),
    Boundary("link.decided", 3, "running", heir=3),
    Boundary("validation.started", 2, "running", heir=3),
    Boundary("answer.accepted", 1, "running", heir=3),
    Boundary("answer.sealed", 1, "validating"),
    Boundary("answer.published", 1, "validating"),
    Boundary("link.decided", 4, "validating"),
    Boundary("turn.finished", 1, ""),
)
#: "guard" and "both": the guard is killed, alone or with its worker.
ACTIONS = ("kill", "stop", "raise", "broker", "guard", "both")
#: In the loop without a folder, and as processes with a folder, whose runs are recorded.
RUNNERS = ("inline", "scripted")
SCRIPT = """
- attempts:
    - - say: "Ohne Marker."
      - usage: {input_tokens: 30, output_tokens: 12}
    - - say: "Ohne Marker.\\n\\n<!-- STEP: done -->"
      - usage: {input_tokens: 30, output_tokens: 12}
"""
#: Nothing is stored or written between these and link.decided.1, answer.accepted.1 or answer.published.1: a process
#: that dies or freezes here leaves the same as there, and its next command to the store is the same.
_LIKE_OTHERS = {"validation.started.1", "link.decided.2", "link.decided.3", "validation.started.2", "link.decided.4"}
#: Whoever claims next and what it may write are the same for both: without a folder these boundaries see to them.
_STOPPED_INLINE = {"link.decided.1", "link.decided.3", "answer.sealed.1"}


def _counts(runner: str, boundary: Boundary, action: str) -> bool:
    """Return True if the case can end differently from the others."""
    if not WHOLE and str(boundary) in _LIKE_OTHERS and (action != "raise" or runner == "inline"):
        return False
    if action in {"guard", "both"}:
        return runner == "scripted" and bool(boundary.heir or (action == "guard" and boundary.point == "run.claimed"))
    return runner == "scripted" or action in {"kill", "raise"} or str(boundary) in _STOPPED_INLINE


CASES = [
    pytest.param(runner, boundary, action, id=f"{boundary}-{action}-{runner}")
    for runner in RUNNERS
    for boundary in BOUNDARIES
    for action in ACTIONS
    if _counts(runner, boundary, action)
]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stage]]:
    """Provide one stage for each runner, for all its cases."""
    with contextlib.ExitStack() as made:

        @cache
        def of(runner: str) -> Stage:
            directory = tmp_path_factory.mktemp("at-once")
            models = {"scripted": f"{runner}:{directory}/meet/script.yaml"}
            stage = made.enter_context(Stage(directory, SCRIPT, models=models))
            stage.start(workers=2)
            return stage

        yield of


@pytest.fixture
def stage(stages: Callable[[str], Stage], runner: str) -> Stage:
    return stages(runner)


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[TurnsClient]:
    async with TurnsClient(stage.settings) as made:
        yield made
    stage.disarm()
    stage.broker.start()


@pytest.mark.parametrize(("runner", "boundary", "action"), CASES)
async def test_a_turn_that_is_judged_at_once_ends_once_wherever_it_is_hit(
    runner: str, boundary: Boundary, action: str, stage: Stage, client: TurnsClient, runs: Runs
) -> None:
    session_id = f"{boundary}-{action}"
    counted = stage.totals()
    go = stage.meet / f"{session_id}.go"
    stage.arm(boundary.point, f"{action if action in {'kill', 'stop', 'raise'} else f'meet:{go}'}@{boundary.at}")
    turn_id = await client.submitter.submit(message("hello", session_id))
    pid = await stage.fired(boundary.point, boundary.at)
    hit_at = time.monotonic()
    if action == "broker":
        await stage.restart_broker()
    elif action in {"guard", "both"}:
        attempts = stage.settings.sessions_dir / session_id / "attempts"
        if boundary.heir:  # the guard notes it a moment after the run's end
            await wait_until(lambda: list(attempts.glob("*.finished")))
        await end(guard_of(pid), *([pid] if action == "both" else []))
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
    check_runs(boundary, action, turn, runs, recorded=runner == "scripted")
    last = (await client.reader.read_attempts(turn_id))[-1]
    delivery = delivery_name(turn_id, last.number, last.last_delivery)
    assert stage.files_of(turn) == (turn.response, delivery)
    assert stage.totals() - counted == stage.folded(turn, events), "the counters are not the fold of the log"
    assert left_in_store(stage, session_id) == []
    attempts = stage.settings.sessions_dir / session_id / "attempts"
    await wait_until(lambda: [path for path in attempts.glob("*") if not path.is_dir()] == [])


async def end(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        await wait_until(lambda pid=pid: not alive(pid))


def check(boundary: Boundary, action: str, turn: Turn, events: list[Event]) -> None:
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2)
    assert turn.response == "Ohne Marker.\n\n<!-- STEP: done -->"
    assert turn.tokens_used == 2 * 42, "what a run used counts once"
    lost = [event.data["during"] for event in events if event.kind == "attempt.lost"]
    if action == "guard":
        assert lost == [], "the guard's agents had ended"
    elif action != "broker":  # an outage may cost a lease or not
        assert lost == [boundary.lost] * bool(boundary.lost)
    assert turn.delivery == 2 + lost.count("running"), "a crash behind the seal costs no run"
    kinds = [event.kind for event in events]
    assert kinds.count("attempt.completed") == 2
    assert (kinds.count("attempt.rejected"), kinds.count("attempt.accepted")) == (1, 1)


def check_runs(boundary: Boundary, action: str, turn: Turn, runs: Runs, *, recorded: bool) -> None:
    """Check that the agent was started once per delivery, except by deliveries hit before or adopting a run."""
    deliveries, found = set(range(1, turn.delivery + 1)), runs.of(turn.turn_id)
    heirs = {boundary.heir} if recorded and boundary.heir and turn.delivery > 2 else set[int]()
    unborn = {2} if boundary.point == "run.claimed" and action != "guard" else set[int]()
    if action == "broker":
        assert found <= deliveries - heirs
        assert len(found) >= 2
        assert heirs or turn.delivery in found
    else:
        assert found == deliveries - heirs - unborn

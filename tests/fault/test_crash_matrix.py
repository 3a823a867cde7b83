"""The crash matrix: at each of eighteen boundaries a process is killed or frozen or fails, or the broker is killed.

Whatever happens, the turn ends once and correctly, its session continues, its counters and files match its log, and the
agent ran as often as the deliveries say. CI kills the broker at one of the boundaries between which nothing is stored;
``make faults`` at each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from api_client.broker.announcer import Announcer
from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.session_paths import delivery_name
from api_client.contract.step_marker import strip_own_marker
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Outcome, Turn
from api_client.turns import fair_queue
from api_client.turns.record.claim import LeaseClaim
from tests.fault.conftest import judged
from tests.fault.matrix import WHOLE, Caller, Runs, Stage, left_in_store, resume, stubbornly
from tests.fault.points import POINTS
from tests.installation import asked as message
from tests.on_loop import Ledger
from tests.support import processes_with, wait_until


@dataclass(frozen=True)
class Boundary:
    """The expectations about a turn that is hit at a boundary.

    ``at`` is the pass of the failpoint that is hit. ``lost`` names the task during which the delivery is lost, if any.
    ``unborn`` says that the hit delivery has no process yet; None means that it may have one. ``last_word`` is what a
    frozen worker logs about the turn when it wakes up. ``amid`` is the delivery of another worker during which it wakes
    up; 0 means at the end. ``heirs`` are deliveries that adopt a finished run and start no agent.
    """

    at: int = 1
    lost: str = ""
    unborn: bool | None = False
    last_word: str = ""
    amid: int = 0
    heirs: frozenset[int] = frozenset()


BOUNDARIES = {
    "turn.announced": Boundary(),
    "turn.stored": Boundary(),
    "task.received": Boundary(last_word="turn.refused", amid=1),
    "run.claimed": Boundary(lost="running", unborn=True, last_word="turn.fenced"),
    "folder.made": Boundary(lost="running", unborn=True, last_word="turn.fenced", amid=2),
    "agent.started": Boundary(lost="running", unborn=None, last_word="turn.fenced", amid=2),
    "output.received": Boundary(lost="running", last_word="turn.fenced", amid=2),
    "agent.ended": Boundary(lost="running", last_word="turn.fenced", heirs=frozenset({2})),
    "run.adopted": Boundary(lost="running", last_word="turn.fenced", heirs=frozenset({2, 3})),
    "answer.accepted": Boundary(lost="validating", last_word="turn.fenced"),
    "answer.published": Boundary(lost="validating", last_word="turn.fenced"),
    "run.committed": Boundary(lost="validating", last_word="turn.fenced"),
    "validation.started": Boundary(lost="validating", last_word="turn.fenced"),
    "link.decided": Boundary(at=2, lost="validating", last_word="turn.fenced"),  # the first pass commits the run
    "turn.finished": Boundary(),
    "result.sent": Boundary(),
    "turn.reaped": Boundary(lost="running", unborn=True, last_word="turn.announced"),
    "answer.sealed": Boundary(lost="validating", last_word="turn.fenced"),
}
ACTIONS = ("kill", "stop", "raise", "broker")
#: Here the broker has what it has at run.claimed, answer.accepted or answer.sealed.
_STORED_AS_ELSEWHERE = {"folder.made", "agent.started", "validation.started", "answer.published"}
CASES = [
    (point, action)
    for point in POINTS
    for action in ACTIONS
    if WHOLE or action != "broker" or point not in _STORED_AS_ELSEWHERE
]
#: Where the agent has to be asked twice.
RETRIED = {
    "turn.stored",
    "run.claimed",
    "agent.started",
    "agent.ended",
    "answer.published",
    "link.decided",
    "turn.finished",
    "turn.reaped",
}
#: Where the run is to be stored before its answer is judged: the loop judges no answer that could speak of files
#: (test_in_loop_validation_killed.py has the boundaries of those it judges).
APART = {"answer.accepted", "run.committed", "validation.started", "link.decided"}
IN_RELAY = {"turn.announced", "turn.stored", "result.sent"}
#: What the agents of one case say, and where they wait for the test.
RULES = """
- when: "[{name} retried]"
  attempts:
    - - say: "Ich fange an ... "
      - wait_for: {meet}/{name}.go
      - say: "und vergesse den Marker.{apart}"
    - - say: "Ich fange an ... und vergesse den Marker.{apart}\\n\\n<!-- STEP: done -->"
- when: "[{name} plain]"
  attempts:
    - - say: "Ich fange an ... "
      - wait_for: {meet}/{name}.go
      - say: "und bin fertig.{apart}\\n\\n<!-- STEP: done -->"
- when: "[{name} next]"
  attempts:
    - - wait_for: {meet}/{name}.next
      - say: "Die nächste Antwort.\\n\\n<!-- STEP: done -->"
"""


def shown(turn: Turn) -> str:
    """Return the answer as callers of the relay get it."""
    return strip_own_marker(turn.response, turn.markers)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    apart = {point: " Der ADR-7 nennt keine files." if point in APART else "" for point in POINTS}
    rules = "".join(
        RULES.replace("{name}", f"{point}-{action}").replace("{apart}", apart[point]) for point, action in CASES
    )
    with Stage(tmp_path_factory.mktemp("matrix"), rules) as made:
        made.start(workers=2, relay=True)
        yield made


class Case:
    """One case: a turn that is hit, and the next turn of its session."""

    def __init__(self, stage: Stage, client: TurnsClient, point: str, action: str) -> None:
        self.stage = stage
        self.client = client
        self.point = point
        self.action = action
        self.name = f"{point}-{action}"
        self.boundary = BOUNDARIES[point]
        self.caller = Caller(stage, self.name)
        self.prompt = f"[{self.name} {'retried' if point in RETRIED else 'plain'}]"
        self.turns: list[str] = []
        self.pid = 0
        self.hit_at = 0.0
        self.said = 0

    @property
    def heirs(self) -> frozenset[int]:
        """Return the deliveries that adopt a finished run."""
        return frozenset({2}) if self.name == "output.received-raise" else self.boundary.heirs

    async def let_finish(self, turn_id: str, runs: Runs) -> None:
        """Let the agents finish, after the agent of a killed worker has ended."""
        if self.name == "output.received-kill":
            await wait_until(lambda: not processes_with(f"HELIX_AGENT_MARK={turn_id}.1.1"))
        elif self.name == "agent.started-kill":  # it may be born after all this was seen
            await wait_until(lambda: 2 in runs.of(turn_id))
        (self.stage.meet / f"{self.name}.go").touch()

    def arm(self) -> None:
        action = f"meet:{self.stage.meet}/{self.name}.on" if self.action == "broker" else self.action
        self.stage.arm(self.point, f"{action}@{self.boundary.at}")
        if self.point == "run.adopted":  # somebody has to leave a finished run first
            self.stage.arm("agent.ended", "kill@1")

    async def begin(self, monkeypatch: pytest.MonkeyPatch) -> tuple[str, asyncio.Task[str]]:
        """Submit the turn that is to be hit; return its id and the task that waits for its answer."""
        if self.point != "turn.reaped":
            asking = asyncio.create_task(self.caller.ask(self.prompt))
            return await self.caller.turn_id(), asking
        # For the reaper: nobody hears of the turn but a worker that is never heard of again.
        with monkeypatch.context() as patched:
            patched.setattr(self.client.store, "has_queues", False)
            blank = {"message": "", "channel": "", "event": "", "since": 0}
            patched.setattr(fair_queue, "build_enqueue_arguments", lambda *_: blank)
            patched.setattr(Announcer, "announce_task", lambda *_, **__: asyncio.sleep(0))
            turn_id = await self.client.submitter.submit(message(self.prompt, self.name))
        claim = Ledger(self.stage.settings, "nobody").claim_turn(turn_id, self.name, ChainTask(RUN, 1))
        assert isinstance(claim, LeaseClaim)
        return turn_id, asyncio.create_task(self._answer(turn_id))

    async def _answer(self, turn_id: str) -> str:
        return shown(await self.client.reader.await_result(turn_id))

    async def hit(self, turn_id: str) -> None:
        """Wait until the failpoint is passed, and do what the failpoint itself does not do."""
        self.pid = await self.stage.fired(self.point, self.boundary.at)
        self.hit_at = time.monotonic()
        self.said = self.stage.logged(self.boundary.last_word, turn_id)
        if self.action == "kill" and self.point in IN_RELAY:
            await wait_until(self.stage.relays[0].ended)
            self.stage.start_relay()
        elif self.action == "broker":
            await self.stage.restart_broker()
            (self.stage.meet / f"{self.name}.on").touch()
        elif self.action == "stop" and self.point in IN_RELAY:
            await self.wake(turn_id)

    async def wake(self, turn_id: str) -> None:
        """Let a frozen process continue after more than a lease, and wait for what it logs."""
        wake_at = self.hit_at + 1.2 * self.stage.settings.lease_seconds
        await wait_until(lambda: time.monotonic() > wake_at)
        resume(self.pid)
        word = self.boundary.last_word
        if word:
            await wait_until(lambda: self.stage.logged(word, turn_id) > self.said)

    async def close(self) -> None:
        """Leave nothing armed, frozen or waiting."""
        self.stage.disarm()
        for end in ("on", "go", "next"):
            (self.stage.meet / f"{self.name}.{end}").touch()
        if self.pid:
            resume(self.pid)
        self.stage.broker.start()
        self.stage.start_relay()
        for turn_id in self.turns:  # a case that failed must not run into the next one
            await self.client.reader.await_result(turn_id, timeout=60)
        await self.caller.close()


@pytest.fixture
async def case(stage: Stage, client: TurnsClient, point: str, action: str) -> AsyncIterator[Case]:
    made = Case(stage, client, point, action)
    yield made
    await made.close()


@pytest.mark.parametrize(("point", "action"), CASES, ids=[f"{point}-{action}" for point, action in CASES])
async def test_a_turn_hit_at_any_boundary_ends_once_and_its_session_goes_on(
    case: Case, stage: Stage, client: TurnsClient, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = stage.totals()
    case.arm()
    turn_id, asking = await case.begin(monkeypatch)
    case.turns.append(turn_id)
    session_id = (await client.reader.read_turn(turn_id)).request.session_id
    next_id = await stubbornly(client, message(f"[{case.name} next]", session_id))
    case.turns.append(next_id)
    amid = case.boundary.amid if case.action == "stop" else 0
    in_run = case.point == "output.received" or case.name == "agent.started-kill"
    if not amid and not in_run:
        await case.let_finish(turn_id, runs)
    await case.hit(turn_id)
    if not amid and in_run:
        await case.let_finish(turn_id, runs)
    if amid:
        await wait_until(lambda: amid in runs.of(turn_id))
        await case.wake(turn_id)
        await case.let_finish(turn_id, runs)

    turn, events = await judged(client, turn_id)
    check_outcome(case, turn, events, case.boundary, retried=case.point in RETRIED)
    assert await asking == shown(turn)
    assert stage.files_of(turn)[0] == turn.response
    (stage.meet / f"{case.name}.next").touch()
    following, following_events = await judged(client, next_id)
    check_outcome(case, following, following_events, Boundary(), retried=False)

    if case.action == "stop" and not amid:
        await case.wake(turn_id)
        assert (turn, events) == await judged(client, turn_id), "a worker that woke up late changed the turn"
    await check_files(case, following)
    check_runs(case, turn, runs, case.boundary)
    check_runs(case, following, runs, Boundary())
    added = stage.folded(turn, events) + stage.folded(following, following_events)
    assert stage.totals() - counted == added, "the counters are not the fold of the logs"
    assert left_in_store(stage, session_id) == []
    for one in (turn_id, next_id):
        await wait_until(lambda one=one: not processes_with(f"HELIX_AGENT_MARK={one}"))


def check_outcome(case: Case, turn: Turn, events: list[Event], boundary: Boundary, *, retried: bool) -> None:
    assert turn.outcome is (Outcome.PASSED_AFTER_RETRY if retried else Outcome.PASSED)
    assert turn.attempt == (2 if retried else 1), "a crash adds a delivery, never an attempt"
    lost = [event.data["during"] for event in events if event.kind == "attempt.lost"]
    if case.action != "broker":  # an outage may cost a lease or not
        assert lost == [boundary.lost] * max(1, len(case.heirs)) if boundary.lost else not lost
    assert turn.delivery == turn.attempt + len(lost) - lost.count("validating")
    started = max(number for number, event in enumerate(events) if event.kind == "attempt.started")
    shown = "".join(event.data["text"] for event in events[started:] if event.kind == "attempt.output")
    assert shown == turn.response, "the log does not tell the answer"


async def check_files(case: Case, turn: Turn) -> None:
    """Check that the session's files are those of the last turn, whatever an earlier worker did late."""
    last = (await case.client.reader.read_attempts(turn.turn_id))[-1]
    delivery = delivery_name(turn.turn_id, last.number, last.last_delivery)
    assert case.stage.files_of(turn) == (turn.response, delivery)


def check_runs(case: Case, turn: Turn, runs: Runs, boundary: Boundary) -> None:
    """Check that the agent was started once per delivery that got so far, and never twice at a time."""
    deliveries, found = set(range(1, turn.delivery + 1)), runs.of(turn.turn_id)
    unborn = boundary.unborn
    if boundary.heirs and case.point == "run.adopted":
        assert found == {1}, "a finished run was paid for again"
    elif case.action == "broker" and case.point != "turn.reaped":
        assert turn.delivery in found <= deliveries
    else:
        deliveries -= case.heirs
        assert deliveries - ({1} if unborn is not False else set()) <= found
        assert found <= deliveries - ({1} if unborn else set())
    assert all(late < case.stage.settings.kill_grace_seconds + 0.1 for late in runs.overlaps(turn.turn_id))

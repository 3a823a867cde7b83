"""The engine on a real store, without Celery: agents that play what a test says, and turns carried out link by link."""

import contextlib
from collections.abc import Callable, MutableMapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import redis

from api_client.client import TurnsClient
from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.events import Event
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN, RUN_QUEUE, VALIDATE, ChainTask, find_queue
from api_client.contract.tool_calls import WaitingCall
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.store.connecting import open_blocking_store
from api_client.turns.record import ledger as product
from tests.blocking import nothing_blocks
from tests.on_loop import Ledger
from tests.support import wait_for
from worker.logs import configure_logging
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop
from worker.turns.engine_parts import EngineParts
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.machine_health import Host, find_obstacle
from worker.turns.loops.loop import Loop
from worker.turns.loops.threads import Threads
from worker.turns.run_admissions import RunAdmissions
from worker.turns.service import TurnService
from worker.turns.session_files import create_session_files
from worker.turns.slots import Slots
from worker.turns.validation_pool import repair_case, validate_case

GOOD = "Alles klar.\n\n<!-- STEP: done -->"
NO_MARKER = "Alles klar."
ADR = (
    "---\nadr_id: '1'\ntitle: Cache\nstatus: Proposed\n---\n\n# ADR-1\n\n## Kontext\n\nText.\n\n<!-- STEP: generate -->"
)

FIRST, JUDGE = ChainTask(RUN, 1), ChainTask(VALIDATE, 1)

Play = Callable[[Order, Emit, Stop], RunResult]


def says(text: str) -> Play:
    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        emit(AgentEvent(kind="output", text=text))
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="exit 0"), text=text)

    return play


def writes(spoil: Callable[[Path], object], text: str = GOOD) -> Play:
    """Spoils its ``output/response.md`` and says where the answer is."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        spoil(order.directory / "output" / "response.md")
        return says(text)(order, emit, stop)

    return play


def ends(verdict: Verdict, kind: ErrorKind | None = None) -> Play:
    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        emit(AgentEvent(kind="output", text="Das Fel"))
        completion = Completion(verdict=verdict, kind=kind, reason="the agent died", retry_after=0.01)
        return RunResult(completion=completion, text="Das Fel")

    return play


def asks(call: WaitingCall, text: str = "") -> Play:
    """Ends with a tool call that a person is asked about."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        completion = Completion(verdict=Verdict.ASKS, reason="a person is asked")
        return RunResult(completion=completion, text=text, agent_session="agent-1", interruption=call.to_interruption())

    return play


def waits_for_stop(order: Order, emit: Emit, stop: Stop) -> RunResult:
    emit(AgentEvent(kind="output", text="Ich arbeite ..."))
    wait_for(lambda: stop.reason)
    return RunResult(completion=Completion(verdict=Verdict.CANCELLED, reason=stop.reason))


class ScriptedByTest:
    """A runner that plays what the test says, one play per run."""

    name = "scripted"
    needs_folder = True

    def __init__(self) -> None:
        self.plays: list[Play] = []
        self.orders: list[Order] = []

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        self.orders.append(order)
        return self.plays.pop(0)(order, emit, stop)


class Bench:
    """A service whose announcements are carried out one after the other, as Celery would."""

    def __init__(self, settings: Settings, client: TurnsClient, name: str = "w") -> None:
        configure_logging(settings)  # as a worker does: tracebacks with every local variable take their time
        self.settings, self.client, self.runner = settings, client, ScriptedByTest()
        self.announced: list[tuple[ChainTask, str, str]] = []
        self.isolated: list[tuple[ChainTask, str, str]] = []
        self.slots = Slots({RUN_QUEUE: 4, CHECK_QUEUE: 2})
        self.told: list[MutableMapping[str, object]] = []
        self.ledger = Ledger(settings, name)
        self.trouble = ""
        self.ends: Callable[[], bool] = lambda: False
        self.host = Host(settings.sessions_dir, lambda folder: self.trouble or find_obstacle(folder))
        self.leases = LeaseKeeper(settings, name)
        self.leases.start()
        self.loop = Loop()
        self.loop.start()
        self._watch = contextlib.ExitStack()
        self._watch.enter_context(nothing_blocks(self.loop))
        self.on_loop = product.Ledger(settings, name)
        self._admissions = RunAdmissions(settings)
        threads = Threads(2)
        self.service = TurnService(
            EngineParts(
                settings=settings,
                ledger=self.on_loop,
                leases=self.leases,
                threads=threads,
                files=create_session_files(settings, self.on_loop, threads),
                host=self.host,
                runners=lambda spec: (self.runner, ""),
                validation_pool=SimpleNamespace(validate_answer=validate_case, repair=repair_case),
                announce=lambda *what: self.announced.append(what),
                isolate=lambda *what: self.isolated.append(what),
                ends=lambda: self.ends(),
                admissions=self._admissions,
            )
        )

    async def submit(self, *plays: Play, **more: object) -> str:
        self.runner.plays += plays
        values: dict[str, object] = {
            "model": "scripted",
            "messages": ({"role": "user", "content": "Wie geht das?"},),
            "session_id": "s",
            **more,
        }
        return await self.client.submitter.submit(TurnRequest(**values))  # type: ignore[arg-type]

    def carry_out(self, turn_id: str, link: ChainTask = FIRST, session_id: str = "s") -> None:
        self.announced.append((link, turn_id, session_id))
        while self.announced:
            self.carry_out_one(*self.announced.pop(0))

    def carry_out_one(self, link: ChainTask, turn_id: str, session_id: str = "s") -> None:
        seat = self.slots.force_slot(find_queue(link.task))
        try:
            self.loop.run_and_wait(self.service.carry_out_task(link, turn_id, session_id, slot_hold=seat))
        finally:
            seat.release_all()

    @cached_property
    def store(self) -> redis.Redis:
        """The store itself."""
        made: redis.Redis = open_blocking_store(self.settings)
        return made

    @property
    def keys(self) -> Keys:
        """The names in the store."""
        return Keys(self.settings.namespace)

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()
        self._watch.close()
        self.loop.run_and_wait(self.on_loop.close())
        self.loop.run_and_wait(self._admissions.close())
        self.loop.close()
        self.leases.close()

    async def outcome(self, *plays: Play, session_id: str = "s", **more: object) -> Turn:
        """A turn, played to its end."""
        turn_id = await self.submit(*plays, session_id=session_id, **more)
        self.carry_out(turn_id, session_id=session_id)
        return await self.client.reader.read_turn(turn_id)

    async def suspended(self, *later: Play, **more: object) -> Turn:
        """A turn that waits for a person; ``later`` is played when it goes on."""
        asked = {"policy": {"step_marker": ("retry", "escalate")}, "max_attempts": 1, **more}
        turn = await self.outcome(says(NO_MARKER), *later, **asked)
        assert turn.state is TurnState.SUSPENDED
        return turn

    async def events(self, turn: Turn) -> list[Event]:
        return [event async for event in self.client.reader.follow_turn(turn.turn_id) if event is not None]

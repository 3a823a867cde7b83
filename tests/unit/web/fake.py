"""A client without a store: it plays back events a test wrote, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from fastapi import FastAPI

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import HelixError, TurnNotFound
from api_client.contract.events import RESET, Event
from api_client.contract.order_log import PlacedOrder
from api_client.contract.settings import Settings
from api_client.contract.step_marker import read_spans
from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.contract.turn_error import TurnError
from api_client.figures.rollup import compute_retry_rate, compute_stats
from api_client.figures.statistics import RetryRate, Stats
from api_client.notifications.outbox import NotificationCounts
from api_client.policies.policy_files import PolicyFiles
from api_client.policies.prompts import SessionTemplates
from api_client.relay_state.openwebui_seen import SeenRequest
from api_client.relay_state.submission_limits import LimitRefusal, OwnerLimits
from api_client.turns.sessions import QueuePlace
from api_client.web.app.relay_server import create_app
from api_client.workers.installation_state import InstallationState

TURN_ID = "turn-" + "5" * 32
EPOCH = "abc123"


def event(seq: int, kind: str, **data: Any) -> Event:
    """Event number ``seq`` of the turn."""
    return Event(seq=seq, epoch=EPOCH, at=1_000.0 + seq, kind=kind, data=data)


def passed(text: str) -> list[Event | None]:
    return [
        event(1, "turn.queued", position=0),
        event(2, "attempt.started", attempt=1, delivery=1, max_attempts=3, worker="w"),
        None,
        event(3, "attempt.output", attempt=1, text=text),
        event(4, "attempt.completed", attempt=1, verdict="complete", reason=""),
        event(5, "attempt.accepted", attempt=1, issues=[]),
        finished(6, "passed", response=text),
    ]


def finished(seq: int, outcome: str, *, response: str = "", error: dict[str, Any] | None = None) -> Event:
    success = Outcome(outcome).success
    data = {"outcome": outcome, "success": success, "attempts": 1, "deliveries": 1, "response": response}
    return event(seq, "turn.finished", **data, step="what", step_source="marker", error=error or {})


class FakeRepeats:
    """Stands for ``OpenQuestions``: the questions and their turns, in a mapping."""

    def __init__(self) -> None:
        self.turns: dict[str, str] = {}

    async def claim_question(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> str:
        return self.turns.setdefault(question, turn_id)

    async def find_turn(self, owner: str, question: str) -> str | None:
        return self.turns.get(question)

    async def replace_turn(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> None:
        self.turns[question] = turn_id

    async def forget_question(self, owner: str, question: str, turn_id: str) -> None:
        self.turns.pop(question, None)


class FakeOrders:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    @asynccontextmanager
    async def place_order(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AsyncIterator[PlacedOrder]:
        self.lines.append((action, by, turn_id))
        yield PlacedOrder()


class FakeProber:
    """Workers that claim every probe, and a store that takes writes unless the client refuses everything."""

    def __init__(self, turns: FakeTurns) -> None:
        self.turns = turns

    async def is_ready(self, seconds: float) -> bool:
        return True

    async def check_writable(self) -> None:
        if self.turns.refusal:
            raise self.turns.refusal


class FakeAllowances:
    """Stands for ``SubmissionLimits``: remembers what was taken; ``refusal`` is the answer."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, float]] = []
        self.refusal: LimitRefusal | None = None

    async def admit_turns(
        self,
        owner: str,
        limits: OwnerLimits,
        turn_ids: Sequence[str] = (),
        *,
        count: int = 1,
        size: int = 0,
        cost: float = 1.0,
    ) -> LimitRefusal | None:
        self.taken.append((owner, cost))
        return self.refusal

    async def note_unfinished(self, owner: str, limits: OwnerLimits, turn_ids: Sequence[str]) -> None:
        pass


class FakeBrowsers:
    """Stands for ``SignIns``: who is signed in, in a mapping."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}

    async def sign_in(self, token: str, key_hash: str, *, keep_seconds: int) -> None:
        self.keys[token] = key_hash

    async def find_signed_in(self, token: str) -> str:
        return self.keys.get(token, "")

    async def sign_out(self, token: str) -> None:
        self.keys.pop(token, None)


class FakeOpenWebUISeen:
    def __init__(self) -> None:
        self.seen: list[SeenRequest] = []

    async def record_request(self, seen: SeenRequest) -> None:
        self.seen.append(seen)


def answering(answer: Any) -> AsyncMock:
    """A method of a part that has nothing to tell: whatever it is asked, it answers this."""
    return AsyncMock(return_value=answer)


class FakeStore:
    namespace = "fake"
    store_fact, read_fact = answering(None), answering("")

    async def await_reply(self, answer: Awaitable[Any]) -> Any:
        return await answer

    async def read_memory(self) -> dict[str, Any]:
        return {}


class FakeFigures:
    """Stands for ``FigureReader``: nothing happened yet."""

    async def read_retry_rate(self, since_seconds: float, by: str = "", every: str = "", model: str = "") -> RetryRate:
        if every == "week":
            raise ValueError("every must be one of minute, hour, day")
        return compute_retry_rate({}, since_seconds=since_seconds, by=by)

    async def read_stats(self, since_seconds: float, by: str = "", *, ago_seconds: float = 0) -> Stats:
        return compute_stats({}, since=0, until=since_seconds, by=by)

    async def read_totals(self) -> dict[str, int]:
        return {}


class FakeSessions:
    """Stands for ``Sessions``: ``places`` is the answer."""

    def __init__(self, turns: FakeTurns) -> None:
        self.turns = turns
        self.places = QueuePlace(0, 0)

    async def find_position(self, turn_id: str, session_id: str) -> QueuePlace:
        return self.places

    async def list_unfinished(self, turn_id: str, session_id: str) -> list[str]:
        return [TURN_ID] if self.turns.submitted else []


class FakeTurns:
    """Stands for ``TurnsClient`` and for those of its parts that are about one turn.

    ``script`` is what ``follow`` yields; an exception in it is raised.
    """

    def __init__(self, script: Iterable[Event | Exception | None] = ()) -> None:
        self.script = list(script)
        self.open_questions = FakeRepeats()
        self.openwebui_seen = FakeOpenWebUISeen()
        self.orders = FakeOrders()
        self.allowances = FakeAllowances()
        self.spending = SimpleNamespace(read_today=answering([]))
        self.store = FakeStore()
        self.pauses = SimpleNamespace(list_active=answering([]), count_held=answering(0))
        self.notifications = SimpleNamespace(is_sending=answering(False), counts=answering(NotificationCounts()))
        self.monitors, self.reporters = [], []
        self.sign_ins = FakeBrowsers()
        self.links = SimpleNamespace(sign_link=answering(""), is_valid=answering(False))
        self.prober = FakeProber(self)
        self.policies = PolicyFiles(Settings())
        self.flows = SimpleNamespace(read_active=answering({"v2": 1}))  # one version, whatever was rolled back
        self.prompts = SessionTemplates(Settings())
        self.figures = FakeFigures()
        self.workers = SimpleNamespace(
            is_queue_full=answering(False),
            explain_waits=answering({}),
            read_faults=answering(()),
            count_messages=answering({}),
            count_queued=answering({}),
            read_state=answering(InstallationState(at=1_000.0)),
        )
        self.reader = self.submitter = self.canceller = self
        self.lists = SimpleNamespace(find_ids=answering([]))
        self.finished_at = time.time()
        self.submitted: list[TurnRequest] = []
        self.keys: list[str] = []
        self.refusal: HelixError | Exception | None = None
        self.owner = "local"
        self.cancelled = 0
        self.sessions = FakeSessions(self)
        self.closed = False
        self.followed: list[tuple[int, str]] = []
        self.left = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def count_followers(self, turn_id: str) -> int:
        return 0

    async def submit(self, request: TurnRequest, *, turn_id: str | None = None, idempotency_key: str = "") -> str:
        if self.refusal:
            raise self.refusal
        self.submitted.append(request)
        self.keys.append(idempotency_key)
        return TURN_ID

    def create_turn_id(self) -> str:
        return f"turn-{len(self.submitted):032x}"

    async def read_turn(self, turn_id: str, *, owner: str | None = None) -> Turn:
        if self.refusal:
            raise self.refusal
        if turn_id != TURN_ID or (owner is not None and owner != self.owner):
            raise TurnNotFound(turn_id)
        events = [item for item in self.script if isinstance(item, Event)]
        last = events[-1] if events else event(1, "turn.queued")
        default = TurnRequest(model="scripted", messages=({"role": "user", "content": "hi"},), session_id="chat-1")
        request = self.submitted[-1] if self.submitted else default
        done = last.final
        return Turn(
            turn_id=turn_id,
            epoch=EPOCH,
            state=TurnState.FINISHED if done else TurnState.RUNNING,
            request=request,
            outcome=Outcome(last.data["outcome"]) if done else None,
            response=last.data["response"] if done else "",
            markers=read_spans(last.data.get("markers"), last.data["response"]) if done else (),
            error=TurnError.from_dict(last.data["error"]) if done else None,
            seq=last.seq,
            delivery=sum(item.kind == "attempt.started" for item in events),
            finished_at=self.finished_at if done else 0.0,
        )

    async def read_attempts(self, turn_id: str, *, owner: str | None = None) -> list[AttemptRecord]:
        await self.read_turn(turn_id, owner=owner)
        return [AttemptRecord(number=1, text="draft")]

    async def follow_turn(
        self,
        turn_id: str,
        *,
        after: int = 0,
        epoch: str = "",
        at_ms: int = 0,
        owner: str | None = None,
        ping_seconds: float | None = None,
        new: bool = False,
    ) -> AsyncIterator[Event | None]:
        self.followed.append((after, epoch))
        await self.read_turn(turn_id, owner=owner)
        try:
            for item in self.script:
                if self.hold and isinstance(item, Event) and item.final:
                    await self.hold.wait()
                if isinstance(item, Exception):
                    raise item
                if item is None or item.kind == RESET or item.seq > after:
                    yield item
        finally:
            self.left.set()

    async def await_result(self, turn_id: str, *, owner: str | None = None, timeout: float | None = None) -> Turn:
        async for _ in self.follow_turn(turn_id, owner=owner):
            pass
        return await self.read_turn(turn_id, owner=owner)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> Turn:
        self.cancelled += 1
        return await self.read_turn(turn_id, owner=owner)

    async def close(self) -> None:
        self.closed = True


def app_with(turns: FakeTurns, **settings: Any) -> FastAPI:
    """The relay over a fake client."""
    settings = {"models": {"scripted": "scripted"}, "ping_seconds": 0.05, **settings}
    return create_app(Settings(**settings), cast("TurnsClient", turns))

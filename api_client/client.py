"""The client: what a program in Python asks of an installation. Asynchronous; the web relay and the CLI use it.

Its parts are its interface. What is asked of one turn: ``submitter``, ``reader``, ``canceller``, and ``inbox`` for one
that waits for a person. What is asked of many: ``lists``, ``sessions``, ``dead_letters``, ``workers``, ``figures``,
``pauses``, ``spending``, ``flows``, ``notices``, ``audit``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from api_client.broker import Announcer
from api_client.budgets import Spending
from api_client.contract.events import AttemptLost, AttemptStarted, Event
from api_client.contract.issues import BadRequest, NotFinished, SessionBusy, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState, replay_id
from api_client.contract.worker_reports import ProcessExit, WorkerOrder
from api_client.figures.metrics import FigureReader
from api_client.index import Found, Search, TurnLists
from api_client.index.selection import DeadLetters, select
from api_client.notices import Notices
from api_client.pauses import Pauses
from api_client.policies import Flows, Policies
from api_client.policies.kept import PolicyReplays, Prompts
from api_client.relay_state import Allowances, OpenQuestions, OpenWebUISeen, SignedLinks, SignIns
from api_client.snapshots import SnapshotReader
from api_client.store import Store
from api_client.store.audit import Audit
from api_client.tracing import UnsentSpans
from api_client.turns.inbox import Canceller, Inbox
from api_client.turns.reader import Sessions, TurnReader
from api_client.turns.submitter import Submitter, replayed
from api_client.workers.fleet import Prober
from api_client.workers.reports import Workers, exit_of


class TurnsClient:
    """All parts over one connection to the store.

    One client serves many tasks of one event loop. Close it, or use it as ``async with TurnsClient(settings)``.
    """

    def __init__(self, settings: Settings) -> None:
        self.store = Store(settings)
        self.settings = self.store.settings
        self.policies = Policies(settings)
        self.flows = Flows(self.store)
        self.prompts = Prompts(settings)
        self.policy_replays = PolicyReplays(self.store)
        self._announcer = Announcer(settings)
        self.reader = TurnReader(self.store)
        self.canceller = Canceller(self.store, self.reader, self._announcer)
        self.spending = Spending(self.store)
        self.submitter = Submitter(
            self.store, self._announcer, self.canceller, self.policies, self.flows, self.prompts, self.spending
        )
        self.audit = Audit(self.store)
        self.inbox = Inbox(self.store, self.reader, self._announcer, self.audit)
        self.dead_letters = DeadLetters(self.store, self.reader)
        self.lists = TurnLists(self.store)
        self.pauses = Pauses(self.store, self.audit)
        self.notices = Notices(self.store, self.audit)
        self.prober = Prober(self.store, self._announcer)
        self.sessions = Sessions(self.store)
        self.workers = Workers(self.store, self.prober, self.spending)
        self.figures = FigureReader(self.store)
        self.untraced = UnsentSpans(self.store)
        # What the relay keeps in the store besides turns.
        self.allowances = Allowances(self.store)
        self.open_questions = OpenQuestions(self.store)
        self.sign_ins = SignIns(self.store)
        self.links = SignedLinks(self.store)
        self.snapshots = SnapshotReader(self.store)
        self.openwebui_seen = OpenWebUISeen(self.store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Turns go on."""
        await self.reader.close()
        await self.store.close()
        self._announcer.close()

    async def replay(self, turn_id: str, *, model: str = "", prompt: str = "") -> str:
        """Submit a finished turn again, as a new turn of its session; returns the new id. Twice makes one turn.

        With ``model`` another model is asked, with ``prompt`` another message is sent; each is a separate replay.
        Raises ``NotFinished``: it is still going on. ``BadRequest``: as ``submit``. ``TurnNotFound``,
        ``StoreUnavailable``: as ``get``.
        """
        turn = await self.reader.get(turn_id)
        if turn.state is not TurnState.FINISHED:
            raise NotFinished(turn_id)
        request, named = replayed(turn.request, self.settings, model=model, prompt=prompt)
        if request.applied is None:
            request = self.policies.apply(request, owner=request.key, named=named)
        return await self.submitter.submit(request, turn_id=replay_id(turn_id, model, prompt), replay_of=turn_id)


# Actions of operators: cancel, replay, drop one turn or all that a filter names. Each leaves an audit line.

#: action -> what it can be done to.
ACTIONS = {"cancel": "unfinished turns", "replay": "finished turns", "drop": "dead letters"}
_ONLY = {"cancel": "unfinished", "replay": "finished", "drop": "dead"}


@dataclass(frozen=True, slots=True)
class Done:
    """The result of one action. ``said`` is one of cancelled, stopping, replayed, dropped, or why it was not done.

    ``before``: a replay like it was made earlier, so that nothing is new.
    """

    turn_id: str
    done: bool
    said: str
    new_turn_id: str = ""
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The differences of a replay from its turn: another model, another last message; empty for the same."""

    model: str = ""
    prompt: str = ""

    def __str__(self) -> str:
        """The change as one reads it in the audit log: without the message."""
        parts = [f"model={self.model}" if self.model else "", "message edited" if self.prompt else ""]
        return ", ".join(filter(None, parts))


_SAME = Change()


async def chosen(client: TurnsClient, action: str, search: Search) -> list[Found]:
    """The turns that match and that the action can be done to, oldest first. Raises as ``select``."""
    return await select(client.lists, search, only=_ONLY[action])


async def act(
    client: TurnsClient,
    action: str,
    turn_id: str,
    *,
    by: str,
    owner: str | None = None,
    bulk: str = "",
    detail: str = "",
    change: Change = _SAME,
) -> Done:
    """Write the audit line, then act. Twice makes no difference to the turn.

    Raises ``TurnNotFound``: no such turn, or not this owner's: nothing was written. ``NotFinished``: a replay of a turn
    that goes on, a drop of a turn that is not a dead letter. ``BadRequest``: a replay that can never work.
    """
    before = await client.reader.get(turn_id, owner=owner)
    detail = ", ".join(filter(None, (detail, str(change))))
    async with client.audit.noted(action, by=by, turn_id=turn_id, bulk=bulk, detail=detail) as order:
        if action == "cancel":
            after = await client.canceller.cancel(turn_id, owner=owner)
            if before.state is TurnState.FINISHED:
                order.refused = f"was already finished: {before.outcome}"
                return Done(turn_id, False, order.refused)
            return Done(turn_id, True, after.outcome.value if after.outcome else "stopping")
        if action == "replay":
            known = bool(await client.lists.read([replay_id(turn_id, change.model, change.prompt)]))
            new = await client.replay(turn_id, model=change.model, prompt=change.prompt)
            if before.outcome is Outcome.DEAD:
                await client.dead_letters.drop(turn_id)
            return Done(turn_id, True, "replayed", new, before=known)
        await client.dead_letters.drop(turn_id)
        return Done(turn_id, True, "dropped")


async def order_worker(client: TurnsClient, name: str, order: WorkerOrder, *, by: str, detail: str = "") -> str:
    """Write the audit line with a worker's whole name, which is returned, and order it. Raises as ``Workers.order``."""
    whole = await client.workers.find(name)
    async with client.audit.noted(f"worker {order.value}", by=by, detail=" ".join(filter(None, (whole, detail)))):
        return await client.workers.order(whole, order)


async def act_on_all(
    client: TurnsClient,
    action: str,
    turns: list[Found],
    *,
    by: str,
    bulk: str,
    detail: str,
    owner: str | None = None,
    change: Change = _SAME,
) -> AsyncGenerator[Done]:
    """Act on one turn after the other; one that changed meanwhile is passed over, and reported.

    Killed half-way, it can simply be asked for again: what was done is no longer selected, or answers as before. Raises
    ``StoreUnavailable``: the store went away; what was yielded is done.
    """
    for turn in turns:
        try:
            yield await act(client, action, turn.turn_id, by=by, owner=owner, bulk=bulk, detail=detail, change=change)
        except (TurnNotFound, NotFinished, SessionBusy, BadRequest) as error:
            yield Done(turn.turn_id, False, str(error))


def counted(turns: list[Found]) -> list[dict[str, Any]]:
    """Return how many of which outcome or state and model, the most first: what a dry run shows."""
    found: dict[tuple[str, str], int] = {}
    for turn in turns:
        what = (turn.status, turn.model)
        found[what] = found.get(what, 0) + 1
    return [
        {"status": status, "model": model, "turns": count}
        for (status, model), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


# A turn's whole history: as one mapping for people and bug reports, and which workers died with it.

FORMAT = "helix-turns.export/1"


@dataclass(frozen=True, slots=True)
class Death:
    """A delivery that was lost with its worker.

    Attributes:
        worker: whose name ends with its host. during: what it did: running, validating.
        at: when that was noticed, in seconds since the epoch. silent_seconds: how long nobody had heard of it.
        cause: what the worker's supervisor saw: a signal, an exit code; empty when nobody saw it.
        signal, exit_code: the same for programs; the code is minus the signal's number, None when nobody saw it.
    """

    delivery: int
    worker: str
    during: str
    at: float
    silent_seconds: float
    cause: str = ""
    signal: str = ""
    exit_code: int | None = None


def deaths(events: Iterable[Event], exits: Sequence[ProcessExit] = ()) -> list[Death]:
    """Each lost delivery, oldest first; one that was handed over in peace does not count. Pure."""
    workers: dict[int, str] = {}
    found = []
    for event in events:
        match event.body:
            case AttemptStarted() as started:
                workers[started.delivery] = started.worker
            case AttemptLost() as lost if lost.during != "shutdown":
                worker = workers.get(lost.delivery, "")
                silent = lost.silent_ms / 1000
                seen = exit_of(exits, worker, heard=event.at - silent, noticed=event.at)
                how = (str(seen), seen.signal, seen.code) if seen else ("", "", None)
                found.append(Death(lost.delivery, worker, lost.during, event.at, silent, *how))
    return found


async def export(client: TurnsClient, turn_id: str, *, owner: str | None = None) -> dict[str, Any]:
    """A turn's record, attempts and events, prompts and answers included. Raises as ``TurnReader.get``."""
    turn = await client.reader.get(turn_id, owner=owner)
    attempts = await client.reader.attempts(turn_id, owner=owner)
    return {
        "format": FORMAT,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "turn": {**turn.to_dict(), "messages": list(turn.request.messages), "metadata": turn.request.metadata},
        "attempts": [attempt.to_dict() for attempt in attempts],
        "events": [event.to_dict() for event in await client.reader.events(turn_id)],
    }

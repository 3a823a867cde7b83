"""The client: submit a turn, read it, follow it, cancel it. Asynchronous; the web relay and the CLI use it.

What is asked of one turn stands here; for the rest a client has parts: ``inbox``, ``dead_letters``, ``lists``,
``sessions``, ``workers``, ``figures``, ``pauses``, ``spending``, ``flows``, ``audit``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Self

from api_client.announcer import Announcer
from api_client.audit import Audit
from api_client.budgets.spending import Spending
from api_client.contract.attempt import AttemptRecord
from api_client.contract.errors import NotFinished
from api_client.contract.events import Event
from api_client.contract.phases.phase import Phase
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest, TurnState, replay_id
from api_client.contract.values.policy import Asker, ReadPolicy
from api_client.figures.figures_reader import FigureReader
from api_client.index.dead_letters import DeadLetters
from api_client.index.finding import find_turn
from api_client.index.lists import TurnLists
from api_client.notices import Notices
from api_client.pauses.pauses import Pauses
from api_client.policies.files import Policies
from api_client.policies.flows import Flows
from api_client.policies.prompts import Prompts
from api_client.policies.replays import PolicyReplays
from api_client.relay_state.allowances import Allowances
from api_client.relay_state.open_questions import OpenQuestions
from api_client.relay_state.openwebui_seen import OpenWebUISeen
from api_client.relay_state.sign_ins import SignIns
from api_client.store import Store
from api_client.tracing.unsent import Backlog
from api_client.turns.canceller import Canceller
from api_client.turns.inbox import Inbox
from api_client.turns.log_outline import Outline
from api_client.turns.reader import TurnReader
from api_client.turns.sessions import Sessions
from api_client.turns.submission import replayed
from api_client.turns.submitter import Submitter
from api_client.workers.fleet import Workers
from api_client.workers.probe import Prober


class TurnsClient:
    """Submits turns and reads what became of them.

    One client serves many tasks of one event loop. Close it, or use it as ``async with TurnsClient(settings)``.
    """

    def __init__(self, settings: Settings, read_policy: ReadPolicy | None = None) -> None:
        """``read_policy`` is needed where the settings name a policy file: ``worker.policies.read_source``."""
        self.store = Store(settings)
        self.settings = self.store.settings
        self.policies = Policies(settings, read_policy)
        self.flows = Flows(self.store)
        self.prompts = Prompts(settings)
        self.policy_replays = PolicyReplays(self.store)
        self._announcer = Announcer(settings)
        self.reader = TurnReader(self.store)
        self._canceller = Canceller(self.store, self.reader, self._announcer)
        self.spending = Spending(self.store)
        self._submitter = Submitter(
            self.store, self._announcer, self._canceller, self.policies, self.flows, self.prompts, self.spending
        )
        self.inbox = Inbox(self.store, self.reader, self._announcer)
        self.dead_letters = DeadLetters(self.store, self.reader)
        self.lists = TurnLists(self.store)
        self.audit = Audit(self.store)
        self.pauses = Pauses(self.store, self.audit)
        self.notices = Notices(self.store, self.audit)
        self.prober = Prober(self.store, self._announcer)
        self.sessions = Sessions(self.store)
        self.workers = Workers(self.store, self.prober)
        self.figures = FigureReader(self.store)
        self.untraced = Backlog(self.store)
        # What the relay keeps in the store besides turns.
        self.allowances = Allowances(self.store)
        self.open_questions = OpenQuestions(self.store)
        self.sign_ins = SignIns(self.store)
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

    async def ping(self) -> None:
        """Ask the store whether it answers; raises ``StoreUnavailable`` when it does not."""
        await self.store.ask(self.store.redis.ping())

    async def submit(
        self, request: TurnRequest, *, turn_id: str | None = None, idempotency_key: str = "", replay_of: str = ""
    ) -> str:
        """Store a turn and announce it; returns its id, or the earlier turn's for a repeated idempotency key.

        Safe to repeat with the same ``turn_id``. Once this returns the turn survives any process's death; with
        ``HELIX_DURABILITY=power`` also a loss of power.

        Raises:
            BadRequest: the request can never work.
            IdempotencyConflict: the key was used with another body.
            BudgetExceeded: a budget of today that the turn counts for is spent.
            IntakePaused: an operator paused the intake; what was stored before goes on.
            SessionBusy: ``double_text`` is ``reject`` and the session has an unfinished turn.
            StoreUnavailable: the store does not answer or refuses writes; repeat later.
        """
        return await self._submitter.submit(
            request, turn_id=turn_id, idempotency_key=idempotency_key, replay_of=replay_of
        )

    def new_id(self, session_id: str) -> str:
        """An id for a turn of this session that is to be submitted."""
        return self._submitter.new_id(session_id)

    async def get(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """The record of a turn.

        Raises:
            TurnNotFound: no such turn, or not this owner's. StoreUnavailable: the store does not answer.
        """
        return await self.reader.get(turn_id, owner=owner)

    async def find(self, text: str, *, owner: str | None = None) -> str:
        """The id of the turn that ``text`` means: the id itself, the beginning of one turn's id, or ``last``.

        With ``owner`` only this owner's turns are meant, and others are not there.

        Raises:
            TurnNotFound: there is none. BadRequest: the ids of several turns begin like this.
            StoreUnavailable: the store does not answer.
        """
        return await find_turn(self.lists, text, owner=owner or "")

    async def attempts(self, turn_id: str, *, owner: str | None = None) -> list[AttemptRecord]:
        """The turn's attempts, oldest first. Raises as ``get``."""
        return await self.reader.attempts(turn_id, owner=owner)

    async def events(self, turn_id: str, *, owner: str | None = None) -> list[Event]:
        """Every event of the turn up to now, without waiting for more. Raises as ``get``."""
        return await self.reader.events(turn_id, owner=owner)

    async def outline(self, turn_id: str, *, owner: str | None = None) -> Outline:
        """The turn's events so far, without the pieces of its answers. Raises as ``get``."""
        return await self.reader.outline(turn_id, owner=owner)

    def follow(
        self,
        turn_id: str,
        *,
        after: int = 0,
        epoch: str = "",
        at_ms: int = 0,
        owner: str | None = None,
        ping_seconds: float | None = None,
    ) -> AsyncGenerator[Event | None]:
        """Every event of the turn after number ``after``, once and in order, until the turn has finished.

        ``None`` means that nothing happened for ``ping_seconds``. An ``epoch`` that is not the turn's, or a number
        beyond the turn's last, belongs to another history: everything is sent again from the start. An event
        ``log.reset`` says the same of what was read so far: the store lost it, and all events follow again. ``after``,
        ``epoch`` and ``at_ms`` are the parts of an event id (``read_event_id``).

        Raises:
            TurnNotFound: as ``get``. StoreUnavailable: the store was away for longer than a minute.
        """
        return self.reader.follow(
            turn_id, after=after, epoch=epoch, at_ms=at_ms, owner=owner, ping_seconds=ping_seconds
        )

    async def result(self, turn_id: str, *, owner: str | None = None, timeout: float | None = None) -> Turn:  # noqa: ASYNC109
        """Wait for the turn's end and return its record.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds. TurnNotFound, StoreUnavailable: as ``follow``.
        """
        return await self.reader.result(turn_id, owner=owner, timeout=timeout)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """Call the turn off, whatever it is doing; returns its record. Idempotent; a finished turn stays as it is.

        Raises:
            TurnNotFound: as ``get``. StoreUnavailable: the store does not answer.
        """
        return await self._canceller.cancel(turn_id, owner=owner)

    async def replay(self, turn_id: str, *, model: str = "", prompt: str = "") -> str:
        """Hand a finished turn in again, as a new turn of its session; returns the new id. Twice makes one turn.

        With ``model`` another model is asked, with ``prompt`` another message is sent; each is a separate replay.

        Raises:
            NotFinished: it is still going on. BadRequest: as ``submit``. TurnNotFound, StoreUnavailable: as ``get``.
        """
        turn = await self.get(turn_id)
        if turn.state is not TurnState.FINISHED:
            raise NotFinished(turn_id)
        request, named = replayed(turn.request, self.settings, model=model, prompt=prompt)
        if request.applied is None:
            request = self.policies.apply(request, Asker(owner=request.key), named=named)
        return await self.submit(request, turn_id=replay_id(turn_id, model, prompt), replay_of=turn_id)

    async def submit_phases(
        self, phases: Sequence[Phase], *, directory: str, idempotency_key: str = "", **more: Any
    ) -> list[str]:
        """Store a turn for each phase, to be run in this order; returns their ids. A failed one stops those after it.

        ``directory`` is the folder of their phases.yaml, relative to HELIX_ROOT. With an ``idempotency_key`` a repeat
        finds the turns that are stored already, and stores those that a lost connection left out. ``more``: see
        ``phases.requests_of``. Raises as ``submit``.
        """
        return await self._submitter.submit_phases(phases, directory=directory, idempotency_key=idempotency_key, **more)

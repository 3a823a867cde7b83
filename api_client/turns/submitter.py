"""Submitting: a turn is stored by one Lua command, then announced."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from api_client.broker import Stamp, announcement
from api_client.broker.announcer import Announcer
from api_client.budgets.spending import BudgetLedger
from api_client.contract.errors import IdempotencyConflict, IntakePaused, SessionBusy
from api_client.contract.failpoints import reach
from api_client.contract.keys import keys_of
from api_client.contract.policy import AppliedPolicy
from api_client.contract.tasks import Link
from api_client.contract.turn import DoubleText, TurnRequest, new_turn_id
from api_client.contract.work import find_work
from api_client.policies import Policies
from api_client.policies.flows import Flows
from api_client.policies.kept import keep
from api_client.policies.prompts import Prompts
from api_client.store import Store
from api_client.store.module_log import ModuleLog
from api_client.turns.admission import check, completed
from api_client.turns.canceller import Canceller
from api_client.turns.submission import arguments
from api_client.turns.turn_line import TurnLine

log = ModuleLog(__name__)

#: So often a template that is in use is put into the store again: none that a turn names is older than a finished turn.
_AGAIN_SECONDS = 60.0
_SUBMIT = Path(__file__).with_name("lua") / "submit.lua"


class Submitter:
    """Stores turns and announces them."""

    def __init__(
        self,
        store: Store,
        announcer: Announcer,
        canceller: Canceller,
        policies: Policies,
        flows: Flows,
        prompts: Prompts,
        spending: BudgetLedger,
    ) -> None:
        self._spending = spending
        self._store = store
        self._flows = flows
        self._prompts = prompts
        self._kept_at: dict[str, float] = {}  # when each template was put into the store
        self._policies = policies
        self._settings = store.settings
        self._line = TurnLine(store, announcer)
        self._canceller = canceller
        self._submit = store.command(_SUBMIT)

    @staticmethod
    def new_id() -> str:
        """Return an id for a turn that is to be submitted, and may be submitted again."""
        return new_turn_id()

    async def submit(
        self, request: TurnRequest, *, turn_id: str | None = None, idempotency_key: str = "", replay_of: str = ""
    ) -> str:
        """Store a turn and announce it; returns its id, or the earlier turn's for a repeated idempotency key.

        Safe to repeat with the same ``turn_id``. Once this returns the turn survives any process's death; with
        ``HELIX_DURABILITY=power`` also a loss of power. Raises ``BadRequest``: the request can never work.
        ``IdempotencyConflict``: the key was used with another body. ``BudgetExceeded``: a budget of today that the turn
        counts for is spent. ``IntakePaused``: an operator paused the intake; what was stored before goes on.
        ``SessionBusy``: ``double_text`` is ``reject`` and the session has an unfinished turn. ``StoreUnavailable``: the
        store does not answer or refuses writes; repeat later.
        """
        request = await self._ready(request, replay=bool(replay_of))
        reach("policy.kept")
        turn_id = turn_id or self.new_id()
        keys = keys_of(self._settings.namespace, turn_id)
        interrupted = await self._waiting(turn_id, request) if request.double_text is DoubleText.INTERRUPT else []
        link = Link(find_work(request).first, 1)
        pushed = announcement(self._settings, link, turn_id, request.session_id, Stamp())
        reserved = await self._spending.reserve({turn_id: request}, {turn_id: idempotency_key})
        at_once = pushed if self._store.has_queues else None
        values = arguments(
            request, self._settings, link, pushed=at_once, keyed=bool(idempotency_key), replay_of=replay_of
        )
        more_keys = [keys.idempotency(request.owner, idempotency_key or turn_id)]
        reply = await self._store.change(self._submit, turn_id, request.session_id, values, more_keys)
        said, position, other = reply[0].decode(), int(reply[1]), reply[2].decode()
        if reserved and said in {"conflict", "busy", "paused", "repeated"}:
            await self._spending.release(turn_id)
        if said == "conflict":
            raise IdempotencyConflict(idempotency_key)
        if said == "busy":
            raise SessionBusy(request.session_id, other)
        if said == "paused":
            raise IntakePaused(other, position / 1000)
        await self._store.settle(other if said == "repeated" else turn_id, 1)
        if said == "repeated":
            return str(other)
        log.info("turn.submitted", turn_id=turn_id, session_id=request.session_id, position=position, said=said)
        reach("turn.stored")
        # A turn that a pause holds back is announced when that ends. "known" is our own command whose reply was
        # lost: it announced the turn, where the queues are its own.
        announced = other in {"announced", "held"} or (said == "known" and self._store.has_queues)
        if position == 0 and not announced:
            await self._line.up(turn_id, request.session_id)
        for earlier in interrupted:
            await self._canceller.cancel(earlier)
        reach("turn.announced")
        return turn_id

    async def _ready(self, request: TurnRequest, *, replay: bool) -> TurnRequest:
        """The request as it is stored; its policy and its template are in the store."""
        if replay and request.flow and request.flow not in await self._flows.active():
            request = await self._anew(request)
        if self._policies.named:  # which one may be the flow version's
            request = self._policies.completed(await self._flows.given(request))
        if request.policy:
            request = completed(request, self._settings)
        check(request, self._settings)
        if request.applied:
            request = await self._with_kept_policy(request, request.applied)
        return await self._with_flow(request)

    async def _with_kept_policy(self, request: TurnRequest, applied: AppliedPolicy) -> TurnRequest:
        """The request, its policy being in the store. A replay whose policy is gone gets the one of today."""
        policy = applied.hash
        if await keep(self._store, policy, self._policies.text_of(policy)):
            return request
        log.warning("policy.gone", policy=policy)
        anew = await self._anew(request)
        check(anew, self._settings)
        return await self._with_kept_policy(anew, anew.applied) if anew.applied else anew

    async def _with_flow(self, request: TurnRequest) -> TurnRequest:
        """The request with its flow version, and with the session template if it needs one, now in the store."""
        if request.template or not find_work(request).in_session:
            return await self._flows.given(request)
        flow = request.flow or await self._flows.of(request)
        prompt = self._prompts.of(request.model, flow, request.locale)
        now = time.monotonic()
        if prompt.text and now - self._kept_at.get(prompt.hash, -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
            await keep(self._store, prompt.hash, prompt.text)
            self._kept_at[prompt.hash] = now
        return replace(request, flow=flow, template=prompt.hash)

    async def _anew(self, request: TurnRequest) -> TurnRequest:
        """A replay with the flow version and the policy of today."""
        request, applied = await self._flows.given(replace(request, flow="", template="")), request.applied
        if applied is None:
            return request
        named = {name for name in ("validators", "policy", "max_attempts") if name not in applied.filled}
        return self._policies.apply(
            replace(request, applied=None, policy={}), owner=request.key, named={*named, "locale"}
        )

    async def _waiting(self, turn_id: str, request: TurnRequest) -> list[str]:
        """The other unfinished turns of the request's session."""
        queue = keys_of(self._settings.namespace, turn_id).session(request.session_id)
        found = [raw.decode() for raw in await self._store.ask(self._store.redis.lrange(queue, 0, -1))]
        return [each for each in found if each != turn_id]

"""Submitting: a turn is stored by one Lua command, then announced to Celery. Nothing of it waits for an agent."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from api_client.broker import Announcement, Announcer, Stamp, announcement
from api_client.budgets import Spending
from api_client.contract.counters import label
from api_client.contract.failpoints import reach
from api_client.contract.issues import (
    BadRequest,
    HelixError,
    IdempotencyConflict,
    IntakePaused,
    SessionBusy,
    SettingsError,
)
from api_client.contract.keys import Keys, keys_of, shard_for
from api_client.contract.messages import spoken
from api_client.contract.phases import Phase, folder_problem, phase_session
from api_client.contract.policy import (
    BUILT_IN,
    MAX_ATTEMPTS,
    MAX_COST_USD,
    MAX_DEADLINE_SECONDS,
    Action,
    Applied,
    Escalation,
    askable,
    check_escalation,
    installed_validators,
    not_offered,
    plain_policy,
)
from api_client.contract.settings import Settings
from api_client.contract.tasks import PHASE_RUN, RUN, Link
from api_client.contract.turn import LOCAL_OWNER, DoubleText, Priority, SlotShare, TurnRequest, new_turn_id
from api_client.policies import Flows, Policies
from api_client.policies.kept import Prompts, keep
from api_client.store import Store
from api_client.store.commands import Word
from api_client.store.module_log import ModuleLog
from api_client.turns.inbox import Canceller, TurnLine

# Refusals before anything is written: requests that can never work.

#: Fields of a request in which a caller's own texts can be, and what no text of them may have in it.
_FIELDS = ("messages", "session_id", "owner", "locale", "metadata", "key", "directory", "phase", "after", "traceparent")
_HALF = re.compile("[\ud800-\udfff]")
_LONGEST_ID = 255


def escalation_of(settings: Settings) -> Escalation:
    """The escalation of a turn that asks for one and says no more."""
    return Escalation(
        model=settings.escalation_model,
        runs=settings.escalation_runs,
        human=settings.escalation_human == "yes",
        timeout_seconds=settings.escalation_timeout_seconds,
        default=settings.escalation_default,
    )


def completed(request: TurnRequest, settings: Settings) -> TurnRequest:
    """The request with what it leaves to the settings: the escalation, where its policy orders one."""
    for order in request.policy.values() if not request.escalation else ():
        if "escalate" in order:
            return replace(request, escalation=escalation_of(settings.of_model(request.model)))
    return request


def check(request: TurnRequest, settings: Settings) -> None:
    """Refuse what can never work, before anything is written.

    Raises ``BadRequest``: names the field. ``PhaseError``: names everything that is wrong with the phase.
    """
    if request.model not in settings.models:
        known = ", ".join(settings.models)
        raise BadRequest(f"unknown model {request.model[:80]!r}; known: {known}", param="model", code="model_not_found")
    _check_texts(request)
    if not request.messages or request.messages[-1].get("role") != "user":
        raise BadRequest("the last message must be the user's", param="messages")
    if not request.messages[-1]["content"].strip():
        raise BadRequest("the last message is empty", param="messages")
    if not 1 <= request.max_attempts <= MAX_ATTEMPTS:
        raise BadRequest(f"max_attempts must be from 1 to {MAX_ATTEMPTS}", param="max_attempts")
    if not 0 < request.deadline_seconds <= MAX_DEADLINE_SECONDS:
        raise BadRequest(
            f"deadline_seconds must be above 0 and at most {MAX_DEADLINE_SECONDS:g}", param="deadline_seconds"
        )
    if request.token_budget < 0 or not 0 <= request.cost_budget_usd <= MAX_COST_USD:
        raise BadRequest(f"budgets must be at least 0 and at most {MAX_COST_USD:.15g} dollars", param="token_budget")
    if request.applied is None and request.validators != settings.validators:  # those of a policy were checked by it
        _check_validators(request.validators, settings)
    if request.policy:
        _check_policy(request)
    if request.phase is not None:
        Phase.from_dict(request.phase)
    if request.escalation is not None:
        check_escalation(request.escalation, settings.models)
    if not request.session_id or len(request.session_id) > _LONGEST_ID:
        raise BadRequest(f"session_id must have 1 to {_LONGEST_ID} characters", param="session_id")


def _check_texts(request: TurnRequest) -> None:
    """Refuse half a surrogate pair: Python keeps it in a text, and no store takes it."""
    for name in _FIELDS:
        value = getattr(request, name)
        if value and not _can_be_stored(value):
            raise BadRequest(f"{name}: half a surrogate pair cannot be stored", param=name)


def _can_be_stored(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() or not _HALF.search(value)
    if isinstance(value, dict):
        return all(map(_can_be_stored, (*value, *value.values())))
    return not isinstance(value, tuple | list) or all(map(_can_be_stored, value))


def _check_validators(names: Collection[str], settings: Settings) -> None:
    for name in names:
        # Installed packages are asked only for a name that we and the settings lack.
        if not (name in BUILT_IN or name in settings.validators or name in installed_validators()):
            message = not_offered(name, askable(settings.validators))
            raise BadRequest(message, param="validators", code="unknown_validator")


def _check_policy(request: TurnRequest) -> None:
    for validator, order in request.policy.items():
        if validator not in request.validators:
            active = ", ".join(request.validators) or "none"
            message = f"policy: {validator[:80]!r} is not an active validator; active: {active}"
            raise BadRequest(message, param="policy")
        if not order or (wrong := [action for action in order if action not in list(Action)]):
            named = f"not {wrong[0][:80]!r}" if order else "not nothing"
            raise BadRequest(f"policy: must order some of {', '.join(Action)}, {named}", param=f"policy.{validator}")


# From the phases of a phases.yaml to the requests of their turns.


def folder_of(directory: str) -> str:
    """The folder of a phases.yaml as it is stored, relative to HELIX_ROOT.

    Raises ``BadRequest``: phases cannot have it, by its name alone.
    """
    if problem := folder_problem(directory):
        raise BadRequest(f"directory: {problem}", param="directory")
    return str(PurePosixPath(directory))


def granted(settings: Settings, directory: str, holder: str) -> bool:
    """True when HELIX_PHASE_DIRECTORIES grants the folder, or one around it, to the keys of this owner."""
    path = PurePosixPath(directory)
    grants = (entry.partition("=") for entry in settings.phase_directories)
    return any(path.is_relative_to(folder.strip()) and owner.strip() in {"*", holder} for folder, _, owner in grants)


def requests_of(
    phases: Sequence[Phase],
    settings: Settings,
    *,
    directory: str,
    model: str = "",
    owner: str = LOCAL_OWNER,
    locale: str = "",
    deadline_seconds: float = 0.0,
    escalation: Escalation | None = None,
    traceparent: str = "",
    operator: bool = False,
    key: str = "",
    share: SlotShare | None = None,
) -> list[TurnRequest]:
    """One request per phase; which turn each comes ``after`` is known only when that turn is stored.

    ``deadline_seconds`` counts for each phase from its own first start. ``operator``: the caller has an operator's
    right, so that gates may run programs also on a worker without a box. Raises ``BadRequest``: phases cannot have the
    folder, by its name alone.
    """
    folder, share = folder_of(directory), share or SlotShare()
    return [
        share.given(
            TurnRequest(
                model=phase.model or model or next(iter(settings.models)),
                messages=({"role": "user", "content": phase.description},),
                session_id=phase_session(folder, owner),
                owner=owner,
                validators=(),
                locale=locale or spoken([phase.description]) or settings.locale,
                max_attempts=phase.max_attempts,
                deadline_seconds=deadline_seconds or settings.deadline_seconds,
                token_budget=settings.token_budget,
                cost_budget_usd=settings.cost_budget_usd,
                escalation=escalation or escalation_of(settings),
                phase=phase.to_dict(),
                directory=folder,
                traceparent=traceparent,
                operator=operator,
                key=key,
                metadata={"phase": f"{number} of {len(phases)}"},
            )
        )
        for number, phase in enumerate(phases, 1)
    ]


# The arguments of ``submit.lua``. Pure but for the turn's epoch, which is drawn.

_DAY_MS = 86_400_000
#: Fields of a request, each with the setting that fills it in where the request does not name it.
_FILLED = {"validators": "validators", "max_attempts": "max_attempts", "policy": "policy_orders"}


def arguments(
    request: TurnRequest, settings: Settings, link: Link, *, pushed: Announcement | None, keyed: bool, replay_of: str
) -> dict[str, Word]:
    """The arguments of ``submit.lua``.

    ``link`` is the turn's first. ``pushed``: the message that the command pushes itself, where the queues are in the
    same server. ``keyed``: it came with an idempotency key. ``replay_of``: the turn that it repeats, or empty.
    """
    cost_budget = int(request.cost_budget_usd * 1e6)
    tokens, cost = request.reserve
    return {
        "request": request.to_json(),
        "epoch": secrets.token_hex(6),
        "owner": request.owner,
        "locale": request.locale,
        "deadline_ms": int(request.deadline_seconds * 1000),
        "double_text": request.double_text.value,
        "body": digest(request, settings) if keyed else "",
        "key_ms": keep_key_ms(request, settings) if keyed else 0,
        "session_id": request.session_id,
        "replay_of": replay_of,
        "token_budget": request.token_budget,
        "cost_budget": cost_budget,
        "token_reserve": tokens,
        "cost_reserve": cost,
        "model_label": label(request.model),
        "policy_hash": policy_hash(request, settings),
        "flow": request.flow,
        "first_link": str(link),
        "from_claim": int(request.phase is not None),
        "max_attempts": request.max_attempts,
        "key": label(request.key) if request.key else "",
        "message": pushed.message if pushed else "",
        "channel": pushed.channel if pushed else "",
        "event": pushed.event if pushed else "",
        "priority": request.priority or Priority.INTERACTIVE.value,
        "weight": request.weight or 1,
        "most": request.at_once,
    }


def policy_hash(request: TurnRequest, settings: Settings) -> str:
    """The hash of the policy that judges: the file's, or of what the settings say instead of one."""
    if request.applied or request.phase:
        return request.applied.hash if request.applied else ""
    own = settings.of_model(request.model)
    return plain_policy(own.validators, own.policy_orders, own.max_attempts).hash


def asked_of(request: TurnRequest) -> TurnRequest:
    """The request without what its caller did not ask for: a policy file that changed makes no other question of it."""
    blank: dict[str, Any] = {"validators": (), "policy": {}, "max_attempts": 1, "locale": ""}
    filled = request.applied.filled if request.applied else ()
    return replace(
        request,
        traceparent="",
        applied=None,
        flow="",
        template="",
        priority="",
        weight=0,
        at_once=0,
        **{name: blank[name] for name in filled},
    )


def digest(request: TurnRequest, settings: Settings) -> str:
    """Return what tells one request from another that came with the same idempotency key.

    A language that nobody asked for counts as the default of earlier releases, so that a key outlives an upgrade.
    """
    asked = asked_of(request)
    newest_first = reversed([each["content"] for each in request.messages if each.get("role") == "user"])
    if asked.locale == (spoken(newest_first) or settings.locale):
        asked = replace(asked, locale="de")
    return hashlib.sha256(asked.to_json().encode()).hexdigest()


def keep_key_ms(request: TurnRequest, settings: Settings) -> int:
    """Return how long an idempotency key is kept, in ms: a day longer than its turn."""
    return int(request.deadline_seconds * 1000) + int(settings.retention_seconds * 1000) + _DAY_MS


def replayed(
    request: TurnRequest, settings: Settings, *, model: str = "", prompt: str = ""
) -> tuple[TurnRequest, frozenset[str]]:
    """The request of a replay, and the fields that stay whatever a policy file gives.

    Another model gets its own rules and attempts where the turn had those of its model; what its caller named stays.

    ``model``: whom to ask instead, ``prompt``: the message instead of the last one; empty for the same.
    """
    # Whether it may run was asked for once; the person who replays it wants it to run, and did not ask then.
    request = replace(request, after="", traceparent="")
    if prompt:
        request = replace(request, messages=(*request.messages[:-1], {**request.messages[-1], "content": prompt}))
    if not model or model == request.model:
        return request, frozenset((*_FILLED, "locale"))
    before, now = settings.of_model(request.model), settings.of_model(model)
    unnamed = [
        name
        for name, setting in _FILLED.items()
        if (name in request.applied.filled if request.applied else getattr(request, name) == getattr(before, setting))
    ]
    changes: dict[str, Any] = {name: getattr(now, _FILLED[name]) for name in unnamed}
    if request.escalation == escalation_of(before):
        changes["escalation"] = None
    return replace(request, model=model, applied=None, template="", **changes), frozenset((*_FILLED, "locale")) - {
        *unnamed
    }


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
        spending: Spending,
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

    def new_id(self, session_id: str) -> str:
        """An id for a turn of this session that is to be submitted."""
        return new_turn_id(shard_for(session_id, self._settings.shards))

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
        turn_id = own_id = turn_id or self.new_id(request.session_id)
        if idempotency_key and self._settings.shards > 1:
            turn_id = await self._reserved(request, idempotency_key, own_id)
        keys = keys_of(self._settings.namespace, turn_id)
        interrupted = await self._waiting(turn_id, request) if request.double_text is DoubleText.INTERRUPT else []
        link = Link(RUN if request.phase is None else PHASE_RUN, 1)
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
        if said == "known" and turn_id != own_id:
            return turn_id
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

    async def submit_phases(
        self, phases: Sequence[Phase], *, directory: str, idempotency_key: str = "", **more: Any
    ) -> list[str]:
        """Store a turn for each phase, to be run in this order; returns their ids. A failed one stops those after it.

        ``directory`` is the folder of their phases.yaml, relative to HELIX_ROOT. With an ``idempotency_key`` a repeat
        finds the turns that are stored already, and stores those that a lost connection left out. ``more``: see
        ``phases.requests_of``. A budget has room for all of them, or none is stored. Raises as ``submit``; the error's
        ``turn_ids`` are those that were stored before it.
        """
        requests = requests_of(phases, self._settings, directory=directory, **more)
        for request in requests:
            check(request, self._settings)
        if requests:  # before the first turn: `turns gc` is to find what its agents write
            known = Keys(self._settings.namespace).phase_folders
            await self._store.ask(self._store.redis.sadd(known, requests[0].directory))
        new = {self.new_id(request.session_id): request for request in requests}
        keys = {each: f"{idempotency_key} {at}" if idempotency_key else "" for at, each in enumerate(new, 1)}
        await self._spending.reserve(new, keys)
        turn_ids: list[str] = []
        try:
            for own_id, request in new.items():
                request = replace(request, after=turn_ids[-1] if turn_ids else "")
                turn_ids.append(await self.submit(request, turn_id=own_id, idempotency_key=keys[own_id]))
        except HelixError as error:
            shown = IdempotencyConflict(idempotency_key) if isinstance(error, IdempotencyConflict) else error
            shown.turn_ids = tuple(turn_ids)
            raise shown from error
        return turn_ids

    async def _ready(self, request: TurnRequest, *, replay: bool) -> TurnRequest:
        """The request as it is stored; its policy and its template are in the store."""
        if replay and request.flow and request.flow not in await self._flows.active():
            request = await self._anew(request)
        if self._policies.named:  # which one may be the flow version's
            request = self._policies.completed(await self._flows.given(request))
        if request.policy:
            request = completed(request, self._settings)
        check(request, self._settings)
        try:
            await self._store.require_shards()
        except SettingsError as error:  # who submits may be a browser: operators must see it too
            log.error("store.shards_differ", error=str(error))
            raise
        if request.applied:
            request = await self._with_kept_policy(request, request.applied)
        return await self._with_flow(request)

    async def _reserved(self, request: TurnRequest, key: str, turn_id: str) -> str:
        """The turn that a key is reserved for: ``turn_id`` from now on, or that of an earlier request of the same body.

        ``submit.lua`` looks a key up in the shard of its turn, but the same key could come with a session of another
        shard, and make another turn there: so it is reserved first, in a shard that the key alone names. A client that
        dies between that and the submit leaves a reservation: a repeat submits the turn it names. A turn that is
        refused because its session is busy keeps its key, too. Raises ``IdempotencyConflict``: of another body.
        """
        body, keep_ms = digest(request, self._settings), keep_key_ms(request, self._settings)
        shard = shard_for(f"{request.owner}\0{key}", self._settings.shards)
        name = Keys(self._store.namespace, shard).reserved(request.owner, key)
        redis = self._store.redis
        found = await self._store.ask(redis.set(name, f"{turn_id} {body}", nx=True, get=True, px=keep_ms))
        earlier, _, known = (found or f"{turn_id} {body}".encode()).decode().partition(" ")
        if known != body:
            raise IdempotencyConflict(key)
        return str(earlier)

    async def _with_kept_policy(self, request: TurnRequest, applied: Applied) -> TurnRequest:
        """The request, its policy being in the store. A replay whose policy is gone gets the one of today."""
        policy = applied.hash
        if await keep(self._store, policy, self._policies.text_of(policy)):
            return request
        log.warning("policy.gone", policy=policy)
        anew = await self._anew(request)
        check(anew, self._settings)
        return await self._with_kept_policy(anew, anew.applied) if anew.applied else anew

    async def _with_flow(self, request: TurnRequest) -> TurnRequest:
        """The request with its flow version, and with its session template, now in the store. Phases have none."""
        if request.phase is not None or request.template:
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

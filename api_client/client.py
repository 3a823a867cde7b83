"""The client: submit a turn, read it, follow it, cancel it. Asynchronous; the web relay and the CLI use it.

Nothing here waits for an agent in a request's way: a turn is stored by one Lua command, announced to Celery, and from
then on everything is read from its record and its log.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import structlog
from redis.exceptions import RedisError

from api_client import attendance, metrics
from api_client.admission import check, completed
from api_client.announcer import Announcer
from api_client.audit import Audit
from api_client.browsers import Browsers
from api_client.clearing import clear
from api_client.contract.commands import CANCEL, command_text, common_settings, turn_keys
from api_client.contract.counters import label
from api_client.contract.errors import (
    IdempotencyConflict,
    NotFinished,
    NotParked,
    SessionBusy,
    StoreUnavailable,
    TurnNotFound,
)
from api_client.contract.escalation import check_decision
from api_client.contract.events import Event
from api_client.contract.failpoints import reach
from api_client.contract.keys import Keys, keys_of, shard_for
from api_client.contract.phase import Phase
from api_client.contract.record import decode_attempts, decode_turn
from api_client.contract.settings import Settings, require_store
from api_client.contract.tasks import Link, first_link
from api_client.contract.turn import (
    AttemptRecord,
    DoubleText,
    Turn,
    TurnRequest,
    TurnState,
    new_turn_id,
    replay_id,
)
from api_client.figures import Figures, read_figures
from api_client.gauges import Gauges, read_gauges
from api_client.lists import TurnLists
from api_client.outline import Outline, read_outline
from api_client.phases import requests_of
from api_client.probe import Prober
from api_client.rates import Rates
from api_client.repeats import Repeats
from api_client.reservations import Reservations
from api_client.selection import Filter, Selected, select
from api_client.sightings import Sightings
from api_client.stats import RetryRate, Stats
from api_client.store import open_store
from api_client.stream import follow, read_log
from api_client.tracing.backlog import Backlog

log = structlog.get_logger()

_LUA = Path(__file__).with_name("lua")
#: Longest wait for one answer, a disk's confirmation included.
_PATIENCE_SECONDS = 4.0


class TurnsClient:
    """Submits turns and reads what became of them.

    One client serves many tasks of one event loop. Close it, or use it as ``async with TurnsClient(settings)``.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = require_store(settings)
        self._redis = open_store(settings)
        self._common = common_settings(settings)
        self._submit = self._redis.register_script(command_text(_LUA / "submit.lua"))
        self._cancel = self._redis.register_script(command_text(CANCEL))
        self._decide = self._redis.register_script(command_text(_LUA / "decide.lua"))
        self._drop = self._redis.register_script(command_text(_LUA / "drop.lua"))
        self._announcer = Announcer(settings)
        self.audit = Audit(self._redis, settings, self._ask)
        self.sightings = Sightings(self._redis, settings.namespace, self._ask)
        self.rates = Rates(self._redis, settings.namespace, self._ask)
        self._outline = self._redis.register_script((_LUA / "outline.lua").read_text())
        self.prober = Prober(self._redis, settings, self._ask, self._announcer)
        self.repeats = Repeats(self._redis, settings.namespace, self._ask)
        self.browsers = Browsers(self._redis, settings.namespace, self._ask)
        self.lists = TurnLists(self._redis, settings, self._ask)
        self.untraced = Backlog(self._redis, settings, self._ask)
        self._reservations = Reservations(self._redis, settings.namespace, settings.shards, self._ask)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Turns go on."""
        await self._redis.aclose()
        self._announcer.close()

    async def ping(self) -> None:
        """Ask the store whether it answers.

        Raises:
            StoreUnavailable: it does not.
        """
        await self._ask(self._redis.ping())

    async def submit(
        self, request: TurnRequest, *, turn_id: str | None = None, idempotency_key: str = "", replay_of: str = ""
    ) -> str:
        """Store a turn and announce it; returns its id, or the earlier turn's for a repeated idempotency key.

        Safe to repeat with the same ``turn_id``. Once this returns the turn survives any process's death; with
        ``HELIX_DURABILITY=power`` also a loss of power.

        Raises:
            BadRequest: the request can never work.
            IdempotencyConflict: the key was used with another body.
            SessionBusy: ``double_text`` is ``reject`` and the session has an unfinished turn.
            StoreUnavailable: the store does not answer or refuses writes; repeat later.
        """
        request = completed(request, self.settings)
        check(request, self.settings)
        turn_id = own_id = turn_id or self.new_id(request.session_id)
        if idempotency_key and self.settings.shards > 1:
            turn_id = await self._reserve(request, idempotency_key, own_id)
        keys = keys_of(self.settings.namespace, turn_id)
        waiting = await self._waiting(keys, request) if request.double_text is DoubleText.INTERRUPT else []
        reply = await self._call(
            self._submit,
            turn_id,
            request.session_id,
            _submission(request, self.settings, keyed=bool(idempotency_key), replay_of=replay_of),
            more_keys=[keys.idempotency(request.owner, idempotency_key or turn_id)],
        )
        said, position, other = reply[0].decode(), int(reply[1]), reply[2].decode()
        if said == "conflict":
            raise IdempotencyConflict(idempotency_key)
        if said == "busy":
            raise SessionBusy(request.session_id, other)
        await self._settle(keys)
        if said == "repeated":
            return str(other)
        if said == "known" and turn_id != own_id:
            return turn_id
        log.info("turn.submitted", turn_id=turn_id, session_id=request.session_id, position=position, said=said)
        reach("B2")
        # "known" is our own command whose reply was lost: whether it was announced, nobody knows. Twice does no harm.
        if position == 0:
            await self._announcer.announce(first_link(request), turn_id, request.session_id)
        for earlier in waiting:
            if earlier != turn_id:
                await self.cancel(earlier)
        reach("B1")
        return turn_id

    def new_id(self, session_id: str) -> str:
        """An id for a turn of this session that is to be submitted."""
        return new_turn_id(shard_for(session_id, self.settings.shards))

    async def readers(self, turn_id: str) -> int:
        """How many follow the turn's events at this moment, through whichever process.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        bell = keys_of(self.settings.namespace, turn_id).bell(turn_id)
        [(_, count)] = await self._ask(self._redis.pubsub_numsub(bell))
        return int(count)

    async def get(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """The record of a turn.

        Raises:
            TurnNotFound: no such turn, or not this owner's. StoreUnavailable: the store does not answer.
        """
        try:
            key = keys_of(self.settings.namespace, turn_id).turn(turn_id)
        except ValueError as error:
            raise TurnNotFound(turn_id) from error
        stored = await self._ask(self._redis.hgetall(key))
        if not stored:
            raise TurnNotFound(turn_id)
        turn = decode_turn(stored)
        if turn.turn_id != turn_id or (owner is not None and turn.request.owner != owner):
            raise TurnNotFound(turn_id)
        return turn

    async def attempts(self, turn_id: str, *, owner: str | None = None) -> list[AttemptRecord]:
        """The turn's attempts, oldest first. Raises as ``get``."""
        await self.get(turn_id, owner=owner)
        key = keys_of(self.settings.namespace, turn_id).attempts(turn_id)
        return decode_attempts(await self._ask(self._redis.hgetall(key)))

    async def events(self, turn_id: str, *, owner: str | None = None) -> list[Event]:
        """Every event of the turn up to now, without waiting for more. Raises as ``get``."""
        await self.get(turn_id, owner=owner)
        found: list[Event] = await self._ask(read_log(self._redis, self.settings.namespace, turn_id))
        return found

    async def outline(self, turn_id: str, *, owner: str | None = None) -> Outline:
        """The turn's events so far, without the pieces of its answers. Raises as ``get``."""
        await self.get(turn_id, owner=owner)
        log_key = keys_of(self.settings.namespace, turn_id).log(turn_id)
        return await read_outline(lambda after, count: self._ask(self._outline(keys=[log_key], args=[after, count])))

    async def follow(
        self,
        turn_id: str,
        *,
        after: int = 0,
        epoch: str = "",
        owner: str | None = None,
        ping_seconds: float | None = None,
    ) -> AsyncGenerator[Event | None]:
        """Every event of the turn after number ``after``, once and in order, until the turn has finished.

        ``None`` means that nothing happened for ``ping_seconds``. An ``epoch`` that is not the turn's, or a number
        beyond the turn's last, belongs to another history: everything is sent again from the start.

        Raises:
            TurnNotFound: as ``get``. StoreUnavailable: the store was away for longer than a minute.
        """
        turn = await self.get(turn_id, owner=owner)
        start = after if epoch in {"", turn.epoch} and after <= turn.seq else 0
        if turn.state is TurnState.FINISHED and start == turn.seq:
            return
        ping = ping_seconds or self.settings.ping_seconds
        log_key = keys_of(self.settings.namespace, turn_id).log(turn_id)
        if turn.state is TurnState.FINISHED and not await self._ask(self._redis.exists(log_key)):
            return  # events may be kept for a shorter time than their turn
        found = follow(self._redis, self.settings.namespace, turn_id, after=start, ping_seconds=ping)
        async with aclosing(found) as events:
            async for event in events:
                if event is not None and event.final:
                    await self._settle(keys_of(self.settings.namespace, turn_id))
                yield event

    async def result(self, turn_id: str, *, owner: str | None = None, timeout: float | None = None) -> Turn:  # noqa: ASYNC109
        """Wait for the turn's end and return its record.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds. TurnNotFound, StoreUnavailable: as ``follow``.
        """
        async with asyncio.timeout(timeout):
            async for _ in self.follow(turn_id, owner=owner):
                pass
        return await self.get(turn_id, owner=owner)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """Call the turn off, whatever it is doing; returns its record. Idempotent; a finished turn stays as it is.

        Raises:
            TurnNotFound: as ``get``. StoreUnavailable: the store does not answer.
        """
        turn = await self.get(turn_id, owner=owner)
        if turn.state is not TurnState.FINISHED:
            said, head = await self._call(
                self._cancel, turn_id, turn.request.session_id, [turn.request.owner, "cancelled"]
            )
            log.info("turn.cancel_asked", turn_id=turn_id, state=said.decode())
            if head:
                await self._announce_next(head.decode(), turn.request.session_id)
        return await self.get(turn_id, owner=owner)

    async def dead(self) -> list[Turn]:
        """The dead letters: turns that took down their workers too often, oldest first. They stay until dropped.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        found: list[Turn] = []
        for shard in range(self.settings.shards):
            ids = await self._ask(self._redis.zrange(Keys(self.settings.namespace, shard).dead, 0, -1))
            for turn_id in ids:
                with suppress(TurnNotFound):  # dropped meanwhile
                    found.append(await self.get(turn_id.decode()))
        return sorted(found, key=lambda turn: turn.finished_at)

    async def select(self, wanted: Filter) -> list[Selected]:
        """The turns a filter means, oldest first.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return await select(self._redis, self.settings, self._ask, wanted)

    async def workers(self) -> list[dict[str, Any]]:
        """What each worker process last told of itself. Raises as ``clear``."""
        return await attendance.workers(self._redis, self.settings, self._ask)

    async def backlog(self, overdue_seconds: float = 15.0) -> dict[str, int]:
        """What waits for workers: messages, unfinished turns, overdue ones, dead letters. Raises as ``clear``."""
        return await attendance.backlog(self._redis, self.settings, self._ask, overdue_seconds)

    async def clear(self, *, dry_run: bool) -> dict[str, int]:
        """Let go what finished longer ago than it is to be kept; returns how many records, events, attempts.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return await clear(self._redis, self.settings, self._ask, dry_run=dry_run)

    async def replay(self, turn_id: str) -> str:
        """Hand a finished turn in again, as a new turn of its session; returns the new id. Twice makes one turn.

        Raises:
            NotFinished: it is still going on. TurnNotFound, StoreUnavailable: as ``get``.
        """
        turn = await self.get(turn_id)
        if turn.state is not TurnState.FINISHED:
            raise NotFinished(turn_id)
        # Whether it may run was asked for once; whoever replays it wants it to run.
        request = replace(turn.request, after="")
        return await self.submit(request, turn_id=replay_id(turn_id), replay_of=turn_id)

    async def drop(self, turn_id: str) -> None:
        """Take a turn off the dead letter list; it is then kept as long as any finished turn. Idempotent.

        Raises:
            NotFinished: it is no dead letter. TurnNotFound, StoreUnavailable: as ``get``.
        """
        turn = await self.get(turn_id)
        [said] = await self._call(self._drop, turn_id, turn.request.session_id, [turn.request.owner])
        if said == b"alive":
            raise NotFinished(turn_id, "is no dead letter")

    async def retry_rate(self, since_seconds: float, by: str = "", every: str = "") -> RetryRate:
        """How often agents had to be asked again in the last ``since_seconds``, as ``metrics.retry_rate``.

        Raises:
            ValueError: ``by`` or ``every`` is none that can be asked for. StoreUnavailable: the store does not answer.
        """
        rate: RetryRate = await self._ask(metrics.retry_rate(self._redis, self.settings, since_seconds, by, every))
        return rate

    async def stats(self, since_seconds: float, by: str = "", *, ago_seconds: float = 0) -> Stats:
        """The figures of a span of ``since_seconds`` that ended ``ago_seconds`` ago, whole or broken down.

        Raises:
            ValueError: ``by`` is none of ``stats.BREAKDOWNS``. StoreUnavailable: the store does not answer.
        """
        found: Stats = await self._ask(metrics.stats(self._redis, self.settings, since_seconds, by, ago_seconds))
        return found

    async def totals(self) -> Mapping[str, int]:
        """Every counter since the beginning (``contract/counters.py``). Raises as ``stats``."""
        found: Mapping[str, int] = await self._ask(metrics.totals(self._redis, self.settings))
        return found

    async def gauges(self) -> Gauges:
        """What is at this moment: turns by state, queues, workers. Raises as ``stats``."""
        found: Gauges = await self._ask(read_gauges(self._redis, self.settings))
        return found

    async def figures(self, span: str) -> Figures:
        """The figures of a span of ``figures.SPANS``, whole and over time. Raises as ``stats``."""
        found: Figures = await self._ask(read_figures(self._redis, self.settings, span))
        return found

    async def _reserve(self, request: TurnRequest, key: str, turn_id: str) -> str:
        keep_ms = _keep_key_ms(request, self.settings)
        return await self._reservations.reserve(request.owner, key, turn_id, _digest(request), keep_ms=keep_ms)

    async def submit_phases(
        self, phases: Sequence[Phase], *, directory: str, idempotency_key: str = "", **more: Any
    ) -> list[str]:
        """Store a turn for each phase, to be run in this order; returns their ids. A failed one stops those after it.

        ``directory`` is the folder of their phases.yaml, relative to HELIX_ROOT. With an ``idempotency_key`` a repeat
        finds the turns that are stored already, and stores those that a lost connection left out. ``more``: model,
        owner, locale, deadline_seconds, escalation; see ``phases.requests_of``. Raises as ``submit``.
        """
        requests = requests_of(phases, self.settings, directory=directory, **more)
        for request in requests:
            check(request, self.settings)
        turn_ids: list[str] = []
        for number, request in enumerate(requests, 1):
            key = f"{idempotency_key} {number}" if idempotency_key else ""
            after = turn_ids[-1] if turn_ids else ""
            try:
                turn_ids.append(await self.submit(replace(request, after=after), idempotency_key=key))
            except IdempotencyConflict:
                raise IdempotencyConflict(idempotency_key) from None
        return turn_ids

    async def inbox(self, *, owner: str | None = None) -> list[Turn]:
        """The parked turns, which wait for a decision, longest waiting first; with ``owner`` only this owner's.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        found: list[Turn] = []
        for shard in range(self.settings.shards):
            ids = await self._ask(self._redis.zrange(Keys(self.settings.namespace, shard).inbox, 0, -1))
            for turn_id in ids:
                with suppress(TurnNotFound):  # decided and forgotten meanwhile, or another owner's
                    turn = await self.get(turn_id.decode(), owner=owner)
                    found += [turn] if turn.state is TurnState.PARKED else []
        return sorted(found, key=lambda turn: turn.parked_at)

    async def decide(
        self,
        turn_id: str,
        kind: str,
        *,
        by: str,
        note: str = "",
        text: str = "",
        owner: str | None = None,
        decision_id: str = "",
    ) -> Turn:
        """Decide on a parked turn: approve, edit (with the text that counts), retry (with a note), reject.

        A worker carries it out; the turn's record is returned as it is then. Safe to repeat with the same
        ``decision_id``: it is decided once. ``by`` says who decided, for the record.

        Raises:
            BadRequest: the decision can never work. NotParked: the turn waits for none. TurnNotFound,
            StoreUnavailable: as ``get``.
        """
        turn = await self.get(turn_id, owner=owner)
        check_decision(kind, note, text, phase=turn.request.phase is not None, decision_id=decision_id)
        # The same id with another decision is no repeat: it is refused like any other second decision.
        once = f"{decision_id or secrets.token_hex(8)}={kind}"
        session_id = turn.request.session_id
        arguments = [turn.request.owner, once, kind, by[:200], note, text]
        said, what = await self._call(self._decide, turn_id, session_id, arguments)
        if said == b"not_parked":
            raise NotParked(turn_id, _why_not_parked(await self.get(turn_id)))
        log.info("turn.decided", turn_id=turn_id, decision=kind, said=said.decode())
        # "known" is our own command whose reply was lost: whether it was announced, nobody knows. Twice does no harm.
        if what:
            await self._announcer.announce(Link.parse(what.decode()), turn_id, session_id)
        await self._settle(keys_of(self.settings.namespace, turn_id))
        return await self.get(turn_id)

    async def _announce_next(self, turn_id: str, session_id: str) -> None:
        """Announce the turn that leads its session now."""
        link = await self._ask(self._redis.hget(keys_of(self.settings.namespace, turn_id).turn(turn_id), "next"))
        if link:
            await self._announcer.announce(Link.parse(link.decode()), turn_id, session_id)

    async def _waiting(self, keys: Keys, request: TurnRequest) -> list[str]:
        found = await self._ask(self._redis.lrange(keys.session(request.session_id), 0, -1))
        return [turn_id.decode() for turn_id in found]

    async def _settle(self, keys: Keys) -> None:
        """With ``power`` durability, wait until the disk has what was written before this (one write, then WAITAOF)."""
        if self.settings.durability != "power":
            return
        async with self._redis.client() as connection:
            await self._ask(connection.set(f"{keys.due}:settled", "1", px=60_000))
            done = await self._ask(connection.execute_command("WAITAOF", 1, 0, 2000))  # type: ignore[no-untyped-call]
        if not done or not int(done[0]):
            raise StoreUnavailable("the disk did not confirm the write within 2 seconds")

    async def _call(
        self, script: Any, turn_id: str, session_id: str, args: list[Any], more_keys: list[str] | None = None
    ) -> Any:
        keys = turn_keys(self.settings.namespace, turn_id, session_id, time.time()) + (more_keys or [])
        bell = keys_of(self.settings.namespace, turn_id).bell(turn_id)
        return await self._ask(script(keys=keys, args=[bell, turn_id, self._common, *args]))

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await answer
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(type(error).__name__) from error


def _submission(request: TurnRequest, settings: Settings, *, keyed: bool, replay_of: str) -> list[Any]:
    """ARGV[4...] of ``submit.lua``."""
    deadline_ms = int(request.deadline_seconds * 1000)
    cost_budget = int(request.cost_budget_usd * 1e6)
    return [
        request.to_json(),
        secrets.token_hex(6),
        request.owner,
        request.locale,
        deadline_ms,
        request.double_text.value,
        _digest(request) if keyed else "",
        _keep_key_ms(request, settings),
        request.session_id,
        replay_of,
        request.token_budget,
        cost_budget,
        request.token_budget // request.max_attempts,
        cost_budget // request.max_attempts,
        label(request.model),
        flow_of(request.session_id, settings.flow_version),
        str(first_link(request)),
        int(request.phase is not None),
    ]


def _digest(request: TurnRequest) -> str:
    return hashlib.sha256(request.to_json().encode()).hexdigest()


def _keep_key_ms(request: TurnRequest, settings: Settings) -> int:
    """Idempotency keys outlive their turn by a day."""
    return int(request.deadline_seconds * 1000) + int(settings.retention_seconds * 1000) + 86_400_000


def _why_not_parked(turn: Turn) -> str:
    """What became of a turn that somebody wanted to decide on."""
    decision = turn.decision
    decided = f"{decision.get('by') or 'the time-out'} decided {decision.get('kind')} before" if decision else ""
    state = f"it is {turn.outcome.value if turn.outcome else turn.state.value}"
    return "; ".join(filter(None, [decided, state]))


def flow_of(session_id: str, versions: Mapping[str, int]) -> str:
    """The flow version of a session: spread by hash as the versions' weights say, so that a session keeps its own."""
    place = int.from_bytes(hashlib.sha256(f"flow {session_id}".encode()).digest()[:8], "big") % sum(versions.values())
    for version, weight in versions.items():
        place -= weight
        if place < 0:
            return version
    raise AssertionError("the weights do not add up to their sum")

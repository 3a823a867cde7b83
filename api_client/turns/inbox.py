"""The turns that wait: in line for their owner (``store/lua/line.lua``), or parked for a person, who decides."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from api_client.broker import Announcer, Stamp, announcement
from api_client.contract.issues import BadRequest, NotParked, TurnNotFound, issues_data
from api_client.contract.keys import delivery_name, keys_of
from api_client.contract.phases import phases_folder
from api_client.contract.policy import check_decision
from api_client.contract.record import AttemptRecord
from api_client.contract.tasks import Link
from api_client.contract.tool_calls import Answerer
from api_client.contract.turn import Turn, TurnState
from api_client.store import Store
from api_client.store.audit import HOLDER, Audit
from api_client.store.commands import CANCEL, LINE_UP, RELEASE, Released, Word, line_script, queue_in, release_keys
from api_client.store.module_log import ModuleLog
from api_client.turns.reader import TurnReader


class TurnLine:
    """Has turns start when their owner's turn has come. Each method may raise ``StoreUnavailable``."""

    def __init__(self, store: Store, announcer: Announcer) -> None:
        self._store = store
        self._announcer = announcer
        self._line_up = store.command(LINE_UP)
        self._release = line_script(RELEASE, store.settings)

    async def up(self, turn_id: str, session_id: str, since: float = 0.0) -> None:
        """Line up a turn that leads its session now. One that has run before, or is gone, is left to the reapers.

        ``since``: when the turn before it came, in seconds since the epoch: the session has waited since then.
        """
        key = keys_of(self._store.namespace, turn_id).turn(turn_id)
        if not (link := await self._store.ask(self._store.redis.hget(key, "next"))):
            return
        values: dict[str, str | bytes | int] = {"message": "", "channel": "", "event": "", "since": int(since * 1000)}
        if self._store.has_queues:
            made = announcement(self._store.settings, Link.parse(link.decode()), turn_id, session_id, Stamp())
            values |= {"message": made.message, "channel": made.channel, "event": made.event}
        [said] = await self._store.change(self._line_up, turn_id, session_id, values)
        if said == b"announce":
            await self._announcer.announce(Link.parse(link.decode()), turn_id, session_id)
        elif not self._store.has_queues:
            await self.release(turn_id)

    async def release(self, turn_id: str) -> None:
        """Announce the turns of this one's shard that may go now."""
        keys = release_keys(keys_of(self._store.namespace, turn_id), queue_in(self._store.settings))
        found = Released.read(await self._store.run(self._release, keys, ["", ""]))
        for link, each, session_id in found.left:
            await self._announcer.announce(link, each, session_id)


log = ModuleLog(__name__)

_DECIDE = Path(__file__).with_name("lua") / "decide.lua"


class Inbox:
    """Reads the inbox and stores decisions. Every method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, reader: TurnReader, announcer: Announcer, audit: Audit) -> None:
        self._store, self._audit = store, audit
        self._redis, self._ask = store.redis, store.ask
        self._reader = reader
        self._announcer = announcer
        self._decide = store.command(_DECIDE)

    async def parked(self, *, owner: str | None = None) -> list[Turn]:
        """The parked turns, longest waiting first; with ``owner`` only this owner's."""
        found: list[Turn] = []
        for keys in self._store.shards:
            for turn_id in await self._ask(self._redis.zrange(keys.inbox, 0, -1)):
                with suppress(TurnNotFound):  # decided and forgotten meanwhile, or another owner's
                    turn = await self._reader.get(turn_id.decode(), owner=owner)
                    found += [turn] if turn.state is TurnState.PARKED else []
        return sorted(found, key=lambda turn: turn.parked_at)

    async def decide(
        self,
        turn_id: str,
        kind: str,
        *,
        by: str,
        name: str = "",
        note: str = "",
        text: str = "",
        owner: str | None = None,
        decision_id: str = "",
        parked_at: float = 0.0,
        how: str = "inbox",
    ) -> Turn:
        """Decide on a parked turn: approve, edit (with the text that counts), retry (with a note), reject.

        A line of the audit log is written first; ``how`` is for it. A worker carries the decision out; the turn's
        record is returned as it is then. Safe to repeat with the same ``decision_id``: it is decided once. ``by`` says
        who decided, ``name`` for whom they say they did, which proves nothing; the record has both. ``parked_at`` says
        which question is meant, by ``Turn.parked_at``; 0: whatever waits now. Raises ``TurnNotFound``: no such turn.
        ``BadRequest``: the decision can never work. ``NotParked``: the turn waits for none.
        """
        turn = await self._reader.get(turn_id, owner=owner)
        asked = turn.asked if turn.state is TurnState.PARKED else None
        phase = turn.request.phase is not None
        check_decision(kind, note, text, phase=phase, decision_id=decision_id, question=asked is not None)
        # The same id with another decision is not a repeat: it is refused like any second decision.
        once = f"{decision_id or secrets.token_hex(8)}={kind}"
        session_id = turn.request.session_id
        values: dict[str, Word] = {"owner": turn.request.owner, "decision": once, "kind": kind, "by": by[:200]}
        values |= {"note": note, "said": text, "name": name[:200]}
        values |= {"parked": str(round(parked_at * 1000)) if parked_at else ""}
        async with self._audit.noted(kind, by=by, turn_id=turn_id, detail=f"{how}, for {name}" if name else how):
            if asked and asked.who == Answerer.OPERATOR and owner is not None:
                raise BadRequest("only an operator answers this question", param="decision", code="operators_only")
            if asked and asked.who != Answerer.OWNER and by == HOLDER:
                raise BadRequest("who answers this question has to sign in", param="decision", code="operators_only")
            said, what = await self._store.change(self._decide, turn_id, session_id, values)
            if said == b"not_parked":
                raise NotParked(turn_id, _why_not_parked(await self._reader.get(turn_id)))
            log.info("turn.decided", turn_id=turn_id, decision=kind, said=said.decode())
            # "known": our own command whose reply was lost. Whether it was announced, nobody knows; twice does no harm.
            if what:
                await self._announcer.announce(Link.parse(what.decode()), turn_id, session_id)
            await self._store.settle(turn_id, turn.seq + (said != b"known"))
            return await self._reader.get(turn_id)


def _why_not_parked(turn: Turn) -> str:
    """Return what became of a turn that somebody wanted to decide on."""
    decided = f"{turn.decision.who} decided {turn.decision.kind} before" if turn.decision else ""
    state = f"it is {turn.outcome.value if turn.outcome else turn.state.value}"
    if turn.state is TurnState.PARKED:
        state = "another question waits by now"
    return "; ".join(filter(None, [decided, state]))


# Calling turns off, in whatever state they are.


class Canceller:
    """Calls turns off, and lines up the turn that leads the session then."""

    def __init__(self, store: Store, reader: TurnReader, announcer: Announcer) -> None:
        self._store = store
        self._reader = reader
        self._line = TurnLine(store, announcer)
        self._cancel = store.command(CANCEL)

    async def cancel(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """Call the turn off, whatever it is doing; returns its record. Idempotent; a finished turn stays as it is.

        Raises ``TurnNotFound``: no such turn, or not this owner's. ``StoreUnavailable``: the store does not answer.
        """
        turn = await self._reader.get(turn_id, owner=owner)
        if turn.state is not TurnState.FINISHED:
            session_id = turn.request.session_id
            said, head = await self._store.change(
                self._cancel, turn_id, session_id, {"owner": turn.request.owner, "reason": "cancelled"}
            )
            log.info("turn.cancel_asked", turn_id=turn_id, state=said.decode())
            if head:
                await self._line.up(head.decode(), session_id, turn.created_at)
        return await self._reader.get(turn_id, owner=owner)


# Facts for a decision on a parked turn.


def proposal(turn: Turn, attempts: list[AttemptRecord]) -> dict[str, Any]:
    """Return the proposal to decide on: the attempt an approval accepts, its text, issues, and folder of files.

    ``files`` is relative to HELIX_ROOT and empty where there are none; ``edit`` accepts what lies there by then.
    """
    records = {record.number: record for record in attempts}
    best = records.get(turn.best or turn.attempt)
    if best is None or turn.question:
        return {"proposal": None}
    issues = issues_data(best.remaining or best.issues)
    text = best.mended or best.answer or best.text
    files = ""
    if turn.request.phase is not None:
        delivery = delivery_name(turn.turn_id, best.number, best.last_delivery)
        files = str(phases_folder(turn.request) / turn.request.phase["id"] / "attempts" / delivery / "output")
    return {"proposal": {"attempt": best.number, "text": text, "issues": issues, "files": files}}

"""The inbox: suspended turns, which wait for a person, and what was decided on them."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from api_client.broker.announcer import Announcer
from api_client.contract.decision import check_decision
from api_client.contract.errors import BadRequest, NotSuspended, TurnNotFound
from api_client.contract.interruption import Answerer
from api_client.contract.orders import LINK_HOLDER, Orders
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn, TurnState
from api_client.interruptions.registry import question_kind
from api_client.store import Store
from api_client.store.commands import Word
from api_client.store.module_log import ModuleLog
from api_client.turns.reader import TurnReader

log = ModuleLog(__name__)

_DECIDE = Path(__file__).with_name("lua") / "decide.lua"


class Inbox:
    """Reads the inbox and stores decisions. Every method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, reader: TurnReader, announcer: Announcer, orders: Orders) -> None:
        self._store, self._orders = store, orders
        self._redis, self._ask = store.redis, store.ask
        self._reader = reader
        self._announcer = announcer
        self._decide = store.command(_DECIDE)

    async def suspended(self, *, owner: str | None = None) -> list[Turn]:
        """The suspended turns, longest waiting first; with ``owner`` only this owner's."""
        found: list[Turn] = []
        for turn_id in await self._ask(self._redis.zrange(self._store.keys.suspended, 0, -1)):
            with suppress(TurnNotFound):  # decided and forgotten meanwhile, or another owner's
                turn = await self._reader.get(turn_id.decode(), owner=owner)
                found += [turn] if turn.state is TurnState.SUSPENDED else []
        return sorted(found, key=lambda turn: turn.suspended_at)

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
        suspended_at: float = 0.0,
        how: str = "inbox",
    ) -> Turn:
        """Answer what a suspended turn waits for: by a choice that its kind of question has, as ``kind``.

        The order is recorded first; ``how`` is for it. A worker carries the decision out; the turn's
        record is returned as it is then. Safe to repeat with the same ``decision_id``: it is decided once. ``by`` says
        who decided, ``name`` for whom they say they did, which proves nothing; the record has both. ``suspended_at``
        names the question, by ``Turn.suspended_at``; 0: whatever waits now. Raises ``TurnNotFound``: no such turn.
        ``BadRequest``: the decision can never work. ``NotSuspended``: the turn waits for none.
        """
        turn = await self._reader.get(turn_id, owner=owner)
        asked, at = (turn.interruption, turn.suspended_at) if turn.state is TurnState.SUSPENDED else (None, 0.0)
        check_decision(kind, note, text, decision_id)
        if asked:
            question_kind(asked.kind).check(asked, kind, note, text)
        # The same id with another decision is not a repeat: it is refused like any second decision.
        once = f"{decision_id or secrets.token_hex(8)}={kind}"
        session_id = turn.request.session_id
        values: dict[str, Word] = {"owner": turn.request.owner, "decision": once, "kind": kind, "by": by[:200]}
        # Only what was checked is answered; 1: nothing that waits.
        meant = 1 if suspended_at not in (0.0, at) else round(at * 1000) or 1
        values |= {"note": note, "said": text, "name": name[:200], "suspended": str(meant)}
        async with self._orders.place(kind, by=by, turn_id=turn_id, detail=f"{how}, for {name}" if name else how):
            if asked and asked.who == Answerer.OPERATOR and owner is not None:
                raise BadRequest("only an operator answers this question", param="decision", code="operators_only")
            if asked and asked.who != Answerer.OWNER and by == LINK_HOLDER:
                raise BadRequest("who answers this question has to sign in", param="decision", code="operators_only")
            said, what = await self._store.change(self._decide, turn_id, session_id, values)
            if said == b"not_suspended":
                raise NotSuspended(turn_id, _why_not_suspended(await self._reader.get(turn_id)))
            log.info("turn.decided", turn_id=turn_id, decision=kind, said=said.decode())
            # "known": our own command whose reply was lost. Whether it was announced, nobody knows; twice does no harm.
            if what:
                await self._announcer.announce(Link.parse(what.decode()), turn_id, session_id)
            await self._store.settle(turn_id, turn.seq + (said != b"known"))
            return await self._reader.get(turn_id)


def _why_not_suspended(turn: Turn) -> str:
    """Return what became of a turn that somebody wanted to decide on."""
    decided = f"{turn.decision.who} decided {turn.decision.kind} before" if turn.decision else ""
    state = f"it is {turn.outcome.value if turn.outcome else turn.state.value}"
    if turn.state is TurnState.SUSPENDED:
        state = "another question waits by now"
    return "; ".join(filter(None, [decided, state]))

"""The inbox: suspended turns that wait for a person's decision."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from api_client.broker.announcer import Announcer
from api_client.contract.decision import check_decision
from api_client.contract.errors import BadRequest, TurnNotFound, TurnNotSuspended
from api_client.contract.interruption import Answerer
from api_client.contract.order_log import LINK_HOLDER, Orders
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import Turn, TurnState
from api_client.interruptions.question import Choice
from api_client.interruptions.registry import find_question_kind, show_question
from api_client.store import Store
from api_client.store.commands import Word
from api_client.store.module_log import ModuleLog
from api_client.turns.reader import TurnReader

log = ModuleLog(__name__)

_DECIDE = Path(__file__).with_name("lua") / "decide.lua"


class Inbox:
    """Lists turns that wait for a person's decision, and stores decisions. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, reader: TurnReader, announcer: Announcer, orders: Orders) -> None:
        self._store, self._orders = store, orders
        self._redis, self._ask = store.redis, store.await_reply
        self._reader = reader
        self._announcer = announcer
        self._decide = store.load_command(_DECIDE)

    async def list_suspended(self, *, owner: str | None = None) -> list[Turn]:
        """Return the suspended turns of ``owner``, or of all owners, longest waiting first."""
        found: list[Turn] = []
        for turn_id in await self._ask(self._redis.zrange(self._store.keys.suspended, 0, -1)):
            with suppress(TurnNotFound):  # the turn was decided and deleted meanwhile, or has another owner
                turn = await self._reader.read_turn(turn_id.decode(), owner=owner)
                found += [turn] if turn.state is TurnState.SUSPENDED else []
        return sorted(found, key=lambda turn: turn.suspended_at)

    async def decide_turn(
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
        page: str = "",
    ) -> Turn:
        """Answer a suspended turn's question with the choice ``kind``. Return the turn's new record.

        The order is recorded first; repeating it with the same ``decision_id`` is safe. ``by`` is the verified identity
        of the person, ``name`` the unverified name, ``text`` an edited answer, ``suspended_at`` identifies the question
        (0 for any), and ``how`` describes the order. ``page`` is the page from which a choice comes
        that has one (``Choice``). Raises ``TurnNotFound``, ``TurnNotSuspended``, or ``BadRequest``
        for a decision that does not fit the question.
        """
        turn = await self._reader.read_turn(turn_id, owner=owner)
        asked, at = (turn.interruption, turn.suspended_at) if turn.state is TurnState.SUSPENDED else (None, 0.0)
        check_decision(kind, note, text, decision_id)
        if asked:
            find_question_kind(asked.kind).check_answer(asked, kind, note, text)
            self._check_page(turn_id, show_question(asked).find_choice(kind), page)
        once = f"{decision_id or secrets.token_hex(8)}={kind}"
        session_id = turn.request.session_id
        values: dict[str, Word] = {"owner": turn.request.owner, "decision": once, "kind": kind, "by": by[:200]}
        # Answer only the question that was checked; the value 1 matches no question.
        meant = 1 if suspended_at not in (0.0, at) else round(at * 1000) or 1
        values |= {"note": note, "said": text, "name": name[:200], "suspended": str(meant)}
        async with self._orders.place_order(kind, by=by, turn_id=turn_id, detail=f"{how}, for {name}" if name else how):
            if asked and asked.who == Answerer.OPERATOR and owner is not None:
                raise BadRequest("only an operator answers this question", param="decision", code="operators_only")
            if asked and asked.who != Answerer.OWNER and by == LINK_HOLDER:
                raise BadRequest("who answers this question has to sign in", param="decision", code="operators_only")
            said, what = await self._store.run_command(self._decide, turn_id, session_id, values)
            if said == b"not_suspended":
                raise TurnNotSuspended(turn_id, _why_not_suspended(await self._reader.read_turn(turn_id)))
            log.info("turn.decided", turn_id=turn_id, decision=kind, said=said.decode())
            # "known" means that the first reply was lost. A second announcement is harmless.
            if what:
                await self._announcer.announce_task(ChainTask.parse(what.decode()), turn_id, session_id)
            await self._store.await_durability(turn_id, turn.seq + (said != b"known"))
            return await self._reader.read_turn(turn_id)

    def _check_page(self, turn_id: str, choice: Choice, page: str) -> None:
        if choice.page and choice.page != page:
            place = f"{self._store.settings.public_url.rstrip('/')}/turns/{turn_id}"
            why = f"{choice.decision} cannot be given here: choose {choice.label!r} at {place}"
            raise BadRequest(why, param="decision")


def _why_not_suspended(turn: Turn) -> str:
    decided = f"{turn.decision.who} decided {turn.decision.kind} before" if turn.decision else ""
    state = f"it is {turn.outcome.value if turn.outcome else turn.state.value}"
    if turn.state is TurnState.SUSPENDED:
        state = "another question waits by now"
    return "; ".join(filter(None, [decided, state]))

"""Submits turns: one Lua command stores a turn, then the turn is announced."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.broker.announcer import Announcer
from api_client.broker.celery_message import MessageStamp, build_announcement
from api_client.contract.admission import Admission, Submission
from api_client.contract.errors import HelixError, IdempotencyConflict, NotAdmitted, SessionBusy, StoreUnavailable
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.keys import keys_for_turn
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import DoubleText, TurnRequest, new_turn_id
from api_client.contract.work import find_work
from api_client.store import Store
from api_client.store.commands import Word
from api_client.store.module_log import ModuleLog
from api_client.turns.canceller import Canceller
from api_client.turns.fair_queue import FairQueue
from api_client.turns.submission import build_submit_arguments, hash_request

log = ModuleLog(__name__)

#: How long task events are left out after one reached nobody, so that monitoring tools may begin at any time.
_UNHEARD_SECONDS = 1.0
_SUBMIT = Path(__file__).with_name("lua") / "submit.lua"


class Submitter:
    """Checks new turns, stores them and announces them to workers."""

    def __init__(
        self,
        store: Store,
        announcer: Announcer,
        canceller: Canceller,
        admissions: Sequence[Admission],
        make_refusal: Callable[[str, float], HelixError],
    ) -> None:
        """Create a submitter. ``make_refusal`` builds the error for refused turns from a reason and an end time."""
        self._store, self._admissions, self._make_refusal = store, admissions, make_refusal
        self._settings = store.settings
        self._line = FairQueue(store, announcer)
        self._canceller = canceller
        self._submit = store.load_command(_SUBMIT)
        self._unheard_until = 0.0

    @staticmethod
    def create_turn_id() -> str:
        """Return a random id for a new turn, with which the caller can repeat a submission."""
        return new_turn_id()

    async def submit(self, request: TurnRequest, *, turn_id: str | None = None, idempotency_key: str = "") -> str:
        """Store and announce a turn, and return its id. A repeated idempotency key gives the earlier turn's id.

        Repeating the call with the same ``turn_id`` is safe. After the return the turn survives the death of any
        process. Raises ``BadRequest``, ``IdempotencyConflict``, ``NotAdmitted``, ``SessionBusy``, ``StoreUnavailable``,
        or the error made by ``make_refusal`` while no new turns are stored.
        """
        turn_id = turn_id or self.create_turn_id()
        turn = Submission(turn_id=turn_id, request=request, idempotency_key=idempotency_key)
        try:
            for each in self._admissions:
                turn = replace(turn, request=await each.admit(turn))
            await self.hold_resources([turn])
        except NotAdmitted:  # a refusal must not hide a turn that was acknowledged before
            if stored := await self.find_stored(turn):
                return stored
            raise
        request = turn.request
        keys = keys_for_turn(self._settings.namespace, turn_id)
        interrupted = (
            await self._list_unfinished(turn_id, request) if request.double_text is DoubleText.INTERRUPT else []
        )
        chain_task = ChainTask(find_work(request).first, 1)
        announcement = build_announcement(self._settings, chain_task, turn_id, request.session_id, MessageStamp())
        at_once = announcement if self._store.has_queues else None
        values, earlier = build_submit_arguments(
            request, self._settings, chain_task, announcement=at_once, has_key=bool(idempotency_key)
        )
        more_keys = [keys.idempotency(request.owner, idempotency_key or turn_id)]
        reply = await self._store_turn(turn_id, request.session_id, values, more_keys, earlier)
        said, position, other = reply[0].decode(), int(reply[1]), reply[2].decode()
        if said in {"conflict", "busy", "closed", "repeated"}:
            await self._release_resources([turn])
        if said == "conflict":
            raise IdempotencyConflict(idempotency_key)
        if said == "busy":
            raise SessionBusy(request.session_id, other)
        if said == "closed":
            raise self._make_refusal(other, position / 1000)
        try:
            await self._store.await_durability(other if said == "repeated" else turn_id, 1)
        except StoreUnavailable as error:  # the turn may run, so a caller must not ask a second time unawares
            error.turn_ids = (other if said == "repeated" else turn_id,)
            raise
        if said == "repeated":
            return str(other)
        log.info("turn.submitted", turn_id=turn_id, session_id=request.session_id, position=position, said=said)
        pass_failpoint("turn.stored")
        # A held-back turn is announced when its pause ends. "known" means that the reply to our own command was lost.
        announced = other in {"announced", "unheard", "held"} or (said == "known" and self._store.has_queues)
        if position == 0 and not announced:
            await self._line.queue_turn(turn_id, request.session_id)
        for other_id in interrupted:
            await self._canceller.cancel(other_id)
        pass_failpoint("turn.announced")
        return turn_id

    async def _store_turn(
        self, turn_id: str, session_id: str, values: dict[str, Word], more_keys: list[str], earlier: list[str]
    ) -> Any:
        if time.monotonic() < self._unheard_until:
            values["event"] = ""
        reply = await self._store.run_command(self._submit, turn_id, session_id, values, more_keys, earlier)
        if reply[2] == b"unheard":
            self._unheard_until = time.monotonic() + _UNHEARD_SECONDS
        return reply

    async def find_stored(self, turn: Submission) -> str:
        """Return the id of the stored turn that a submission repeats, or an empty string for a new submission."""
        keys, key = keys_for_turn(self._settings.namespace, turn.turn_id), turn.idempotency_key
        stored = turn.turn_id if await self._store.send_command("EXISTS", keys.turn(turn.turn_id)) else ""
        if key and not stored:
            used = await self._store.send_command("GET", keys.idempotency(turn.request.owner, key)) or b""
            earlier, _, body = used.decode().partition(" ")
            stored = earlier if body == hash_request(turn.request, self._settings) else ""
        if stored:
            await self._store.await_durability(stored, 1)
        return stored

    async def admit_turn(self, turn: Submission) -> Submission:
        """Run every admission check on a submission, and return the completed submission."""
        for each in self._admissions:
            turn = replace(turn, request=await each.admit(turn))
        return turn

    async def hold_resources(self, turns: Sequence[Submission]) -> None:
        """Reserve what the turns need in every admission. If one admission refuses, release all reservations."""
        try:
            for each in self._admissions:
                await each.hold(turns)
        except StoreUnavailable:
            raise  # the store cannot answer now
        except HelixError:
            await self._release_resources(turns)
            raise

    async def _release_resources(self, turns: Sequence[Submission]) -> None:
        for turn in turns:
            for each in self._admissions:
                await each.release(turn)

    async def _list_unfinished(self, turn_id: str, request: TurnRequest) -> list[str]:
        queue = keys_for_turn(self._settings.namespace, turn_id).session(request.session_id)
        found = [raw.decode() for raw in await self._store.await_reply(self._store.redis.lrange(queue, 0, -1))]
        return [each for each in found if each != turn_id]

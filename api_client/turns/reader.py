"""Reading one turn: its record, its attempts, its events, now or until it has finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import TurnNotFound
from api_client.contract.events import Event, end_of
from api_client.contract.keys import keys_of
from api_client.contract.record import decode_attempts, decode_turn, is_apart
from api_client.contract.turn import Turn, TurnState
from api_client.store import Store
from api_client.turns.bells import Bells
from api_client.turns.stream import EndUnreadable, Position, follow, read_log

#: Entries of the log one command looks at: few enough to hold the store up for a millisecond only.
_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutline:
    """The events of a turn but ``attempt.output``, in order, and how many pieces there were."""

    events: tuple[Event, ...]
    pieces: int


#: Ends that are known to be confirmed.
_MOST_CONFIRMED = 256
_OUTLINE, _PLACE = (Path(__file__).with_name("lua") / name for name in ("outline.lua", "place.lua"))


class TurnReader:
    """Reads turns.

    With ``owner`` a method finds only this owner's turns. Each one raises ``TurnNotFound`` for a turn that is not
    there, or is another owner's, and ``StoreUnavailable`` when the store does not answer.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis, self._ask = store.redis, store.ask
        self._bells = Bells(store)
        self._confirmed: dict[str, None] = {}
        self._outline = store.redis.register_script(_OUTLINE.read_text())

    async def get(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """The record of a turn."""
        try:
            keys = keys_of(self._store.namespace, turn_id)
        except ValueError as error:
            raise TurnNotFound(turn_id) from error
        stored = await self._store.hash(keys.turn(turn_id))
        if is_apart(stored):
            names = (b"request", b"response")
            texts = await self._ask(self._redis.hmget(keys.texts(turn_id), names))
            stored |= {name: text for name, text in zip(names, texts, strict=True) if text is not None}
        if place := stored.get(b"response_in"):
            stored[b"response"] = await self._long_answer(turn_id, place.decode())
        if not stored:
            raise TurnNotFound(turn_id)
        turn = decode_turn(stored)
        if turn.turn_id != turn_id or (owner is not None and turn.request.owner != owner):
            raise TurnNotFound(turn_id)
        if turn.state is TurnState.FINISHED:
            await self._confirm(turn_id, turn.seq, round(turn.finished_at * 1000))
        return turn

    async def _whole(self, turn_id: str, event: Event) -> Event:
        """The event with the answer it tells, where that is long and stored apart."""
        if not event.final or not event.data.get("response_in"):
            return event
        text = await self._long_answer(turn_id, event.data["response_in"])
        data = {**event.data, "response": text.decode("utf-8", "replace")}
        del data["response_in"]
        return replace(event, data=data)

    async def _long_answer(self, turn_id: str, place: str) -> bytes:
        """The text of an answer that is a fact of an attempt; its own when attempts were cleared up before."""
        keys = keys_of(self._store.namespace, turn_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(keys.attempts(turn_id), place)
        pipe.hget(keys.texts(turn_id), "response")
        fact, own = await self._ask(pipe.execute())
        return bytes(fact if fact is not None else own or b"")

    async def _confirm(self, turn_id: str, seq: int, at_ms: int) -> None:
        """An end is shown once it is as durable as HELIX_DURABILITY says; that is asked for once. Raises as ``get``."""
        if turn_id not in self._confirmed:
            await self._store.settle(turn_id, seq, at_ms)
            self._confirmed[turn_id] = None
            while len(self._confirmed) > _MOST_CONFIRMED:
                self._confirmed.pop(next(iter(self._confirmed)))

    async def attempts(self, turn_id: str, *, owner: str | None = None) -> list[AttemptRecord]:
        """The turn's attempts, oldest first."""
        turn = await self.get(turn_id, owner=owner)
        key = keys_of(self._store.namespace, turn_id).attempts(turn_id)
        found = decode_attempts(await self._ask(self._redis.hgetall(key)), turn.request.prompt)
        # The instructions are the operator's, and name folders of the machine.
        return (
            found
            if owner is None
            else [
                replace(each, sent={name: value for name, value in each.sent.items() if name != "system"})
                for each in found
            ]
        )

    async def events(self, turn_id: str, *, owner: str | None = None) -> list[Event]:
        """Every event of the turn up to now, without waiting for more."""
        await self.get(turn_id, owner=owner)
        found: list[Event] = await self._ask(read_log(self._redis, self._store.namespace, turn_id))
        return [await self._whole(turn_id, event) for event in found]

    async def outline(self, turn_id: str, *, owner: str | None = None) -> LogOutline:
        """The turn's events so far, without the pieces of its answers."""
        await self.get(turn_id, owner=owner)
        log_key, ask = keys_of(self._store.namespace, turn_id).log(turn_id), self._ask
        events: list[Event] = []
        position, looked, pieces = 0, _BATCH, 0
        while looked == _BATCH:
            last, looked, skipped, *wires = await ask(self._outline(keys=[log_key], args=[position, _BATCH]))
            position, pieces = int(last), pieces + int(skipped)
            for wire in wires:
                with suppress(ValueError):  # a damaged entry hides no other
                    events.append(Event.decode(wire))
        return LogOutline(events=tuple(events), pieces=pieces)

    async def close(self) -> None:
        """Give the connection of the bells back; readers that still follow hear that it was lost."""
        await self._bells.close()

    async def followers(self, turn_id: str) -> int:
        """Return how many clients follow the turn's events at this moment; all readers of a client count as one."""
        bell = keys_of(self._store.namespace, turn_id).bell(turn_id)
        [(_, count)] = await self._ask(self._redis.pubsub_numsub(bell))
        return int(count)

    async def follow(
        self,
        turn_id: str,
        *,
        after: int = 0,
        epoch: str = "",
        at_ms: int = 0,
        owner: str | None = None,
        ping_seconds: float | None = None,
        new: bool = False,
    ) -> AsyncGenerator[Event | None]:
        """Every event of the turn after number ``after``, once and in order, until the turn has finished.

        ``None`` means that nothing happened for ``ping_seconds``. An ``epoch`` that is not the turn's, or a number
        beyond the turn's last, belongs to another history: everything is sent again from the start. An event
        ``log.reset`` says the same of what was read so far: the store lost it, and all events follow again. ``after``,
        ``epoch`` and ``at_ms`` are the parts of an event id (``read_event_id``). ``new``: the caller has just submitted
        it, so its log is there, and the record need not be asked. Raises ``StoreUnavailable``: the store was away for
        longer than a minute.
        """
        behind, ping = Position(0), ping_seconds or self._store.settings.ping_seconds
        if not new:
            turn = await self.get(turn_id, owner=owner)
            if after and epoch in {"", turn.epoch} and after <= turn.seq:
                behind = Position(after, at_ms)
            log_key = keys_of(self._store.namespace, turn_id).log(turn_id)
            if turn.ended_with(*behind) or (
                turn.state is TurnState.FINISHED and not await self._ask(self._redis.exists(log_key))
            ):
                return  # events may be kept for a shorter time than their turn
        found = follow(self._store.asked, self._bells, self._store.namespace, turn_id, after=behind, ping_seconds=ping)
        try:
            async with aclosing(found) as events:
                async for event in events:
                    if event is not None and event.final:
                        await self._confirm(turn_id, event.seq, event.at_ms)
                        event = await self._whole(turn_id, event)
                    yield event
        except EndUnreadable:
            yield end_of(await self.get(turn_id))

    async def result(self, turn_id: str, *, owner: str | None = None, timeout: float | None = None) -> Turn:  # noqa: ASYNC109
        """Wait for the turn's end and return its record.

        Raises ``TimeoutError``: it did not end within ``timeout`` seconds. ``StoreUnavailable``: the store was away for
        longer than a minute.
        """
        async with asyncio.timeout(timeout):
            async for _ in self.follow(turn_id, owner=owner):
                pass
        return await self.get(turn_id, owner=owner)

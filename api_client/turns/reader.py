"""Reads turns, their attempts and events, once or until a turn has finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import TurnNotFound
from api_client.contract.events import Event, final_event
from api_client.contract.keys import keys_for_turn
from api_client.contract.record import decode_attempts, decode_turn, has_separate_texts
from api_client.contract.turn import Turn, TurnState
from api_client.store import Store
from api_client.store.earlier_messages import READ_HISTORY, join_history
from api_client.store.read_script import ReadScript
from api_client.turns.channels import ChannelHub
from api_client.turns.stream import EndUnreadable, Position, follow_events, read_log

#: Log entries read by one command, few enough to block the store for about a millisecond.
_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutline:
    """The events of a turn, with the number of its output pieces instead of the pieces."""

    events: tuple[Event, ...]
    pieces: int


#: Finished turns remembered as durable.
_MOST_CONFIRMED = 256
_OUTLINE, _QUEUE_POSITION = (Path(__file__).with_name("lua") / name for name in ("outline.lua", "queue_position.lua"))


class TurnReader:
    """Reads turns, their attempts and their events from the store.

    Methods raise ``TurnNotFound`` if the turn does not exist or has another owner, and ``StoreUnavailable``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis, self._ask = store.redis, store.await_reply
        self._bells = ChannelHub(store)
        self._confirmed: dict[str, None] = {}
        self._history = ReadScript(store.redis, READ_HISTORY)
        self._outline = ReadScript(store.redis, _OUTLINE)

    async def read_turn(self, turn_id: str, *, owner: str | None = None) -> Turn:
        """Return the record of a turn. Raises ``TurnNotFound`` if it is missing or has another owner."""
        try:
            keys = keys_for_turn(self._store.namespace, turn_id)
        except ValueError as error:
            raise TurnNotFound(turn_id) from error
        stored = await self._store.read_hash(keys.turn(turn_id))
        if has_separate_texts(stored):
            names = (b"request", b"response")
            texts = await self._ask(self._redis.hmget(keys.texts(turn_id), names))
            stored |= {name: text for name, text in zip(names, texts, strict=True) if text is not None}
        if place := stored.get(b"response_in"):
            stored[b"response"] = await self._read_long_answer(turn_id, place.decode())
        if not stored:
            raise TurnNotFound(turn_id)
        turn = decode_turn(stored)
        if head := stored.get(b"history"):
            key = keys.history(turn.request.session_id)
            turn = join_history(turn, await self._ask(self._history(keys=[key], args=[head])))
        if turn.turn_id != turn_id or (owner is not None and turn.request.owner != owner):
            raise TurnNotFound(turn_id)
        if turn.state is TurnState.FINISHED:
            await self._confirm_end(turn_id, turn.seq, round(turn.finished_at * 1000))
        return turn

    async def _complete_event(self, turn_id: str, event: Event) -> Event:
        if not event.final or not event.data.get("response_in"):
            return event
        text = await self._read_long_answer(turn_id, event.data["response_in"])
        data = {**event.data, "response": text.decode("utf-8", "replace")}
        del data["response_in"]
        return replace(event, data=data)

    async def _read_long_answer(self, turn_id: str, place: str) -> bytes:
        keys = keys_for_turn(self._store.namespace, turn_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(keys.attempts(turn_id), place)
        pipe.hget(keys.texts(turn_id), "response")
        fact, own = await self._ask(pipe.execute())
        return bytes(fact if fact is not None else own or b"")

    async def _confirm_end(self, turn_id: str, seq: int, at_ms: int) -> None:
        if turn_id not in self._confirmed:
            await self._store.await_durability(turn_id, seq, at_ms)
            self._confirmed[turn_id] = None
            while len(self._confirmed) > _MOST_CONFIRMED:
                self._confirmed.pop(next(iter(self._confirmed)))

    async def read_attempts(self, turn_id: str, *, owner: str | None = None) -> list[AttemptRecord]:
        """Return the records of a turn's attempts, oldest first."""
        turn = await self.read_turn(turn_id, owner=owner)
        key = keys_for_turn(self._store.namespace, turn_id).attempts(turn_id)
        found = decode_attempts(await self._ask(self._redis.hgetall(key)), turn.request.prompt)
        return (
            found
            if owner is None
            else [
                replace(each, sent={name: value for name, value in each.sent.items() if name != "system"})
                for each in found
            ]
        )

    async def read_events(self, turn_id: str, *, owner: str | None = None) -> list[Event]:
        """Return all events that a turn has stored so far, without waiting for more."""
        await self.read_turn(turn_id, owner=owner)
        found: list[Event] = await self._ask(read_log(self._redis, self._store.namespace, turn_id))
        return [await self._complete_event(turn_id, event) for event in found]

    async def read_outline(self, turn_id: str) -> LogOutline:
        """Return a turn's events so far, with only the number of its output pieces instead of the pieces."""
        await self.read_turn(turn_id)
        log_key, ask = keys_for_turn(self._store.namespace, turn_id).log(turn_id), self._ask
        events: list[Event] = []
        position, looked, pieces = 0, _BATCH, 0
        while looked == _BATCH:
            last, looked, skipped, *wires = await ask(self._outline(keys=[log_key], args=[position, _BATCH]))
            position, pieces = int(last), pieces + int(skipped)
            for wire in wires:
                with suppress(ValueError):  # one damaged entry must not hide the others
                    events.append(Event.decode(wire))
        return LogOutline(events=tuple(events), pieces=pieces)

    async def close(self) -> None:
        """Close all subscriptions. Readers that are still following a turn receive a connection error."""
        await self._bells.close()

    async def count_followers(self, turn_id: str) -> int:
        """Return how many clients are following a turn. Several readers in one client count once."""
        channel = keys_for_turn(self._store.namespace, turn_id).wake_up_channel(turn_id)
        [(_, count)] = await self._ask(self._redis.pubsub_numsub(channel))
        return int(count)

    async def follow_turn(
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
        """Yield every event of a turn after the given one, once and in order, until the turn has finished.

        An event ``log.reset`` means that all events follow again, because the reader knows another history or the store
        lost events. After each ``ping_seconds`` of silence, None is yielded.

        Args:
            after, epoch, at_ms: number, history and time of the last event seen (``read_event_id``).
            new: True if the caller has just submitted the turn.

        Raises:
            StoreUnavailable: the store was away for more than a minute.
        """
        behind, ping = Position(0), ping_seconds or self._store.settings.ping_seconds
        if not new:
            turn = await self.read_turn(turn_id, owner=owner)
            if after and epoch in {"", turn.epoch} and after <= turn.seq:
                behind = Position(after, at_ms)
            log_key = keys_for_turn(self._store.namespace, turn_id).log(turn_id)
            if turn.has_ended_with(*behind) or (
                turn.state is TurnState.FINISHED and not await self._ask(self._redis.exists(log_key))
            ):
                return  # events may expire before their turn
        found = follow_events(
            self._store.send_raw, self._bells, self._store.namespace, turn_id, after=behind, ping_seconds=ping
        )
        try:
            async with aclosing(found) as events:
                async for event in events:
                    if event is not None and event.final:
                        await self._confirm_end(turn_id, event.seq, event.at_ms)
                        event = await self._complete_event(turn_id, event)
                    yield event
        except EndUnreadable:
            yield final_event(await self.read_turn(turn_id))

    async def await_result(self, turn_id: str, *, owner: str | None = None, timeout: float | None = None) -> Turn:  # noqa: ASYNC109
        """Wait until a turn has finished, and return its record.

        Raises ``TimeoutError`` after ``timeout`` seconds, ``StoreUnavailable`` if the store was away for more than a
        minute.
        """
        async with asyncio.timeout(timeout):
            async for _ in self.follow_turn(turn_id, owner=owner):
                pass
        return await self.read_turn(turn_id, owner=owner)

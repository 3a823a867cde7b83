"""Limits on the submissions of an owner: turns per minute, stored bytes, and unfinished turns.

Rate and bytes are leaky buckets, each stored as the time at which the bucket is full again (generic cell rate
algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.turn import TurnState
from api_client.store import Store
from api_client.store.commands import load_plain_script

_ADMIT = load_plain_script(Path(__file__).with_name("admit.lua"))
_MINUTE_MS = 60_000
#: After this time a noted id without a turn is dropped: its relay died, or the request joined another turn.
_STORED_WITHIN_MS = 60_000
_NOTED_MS = 8 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """The limits on one owner's submissions, where 0 means no limit.

    Half of ``stored_bytes`` may come at once, the whole within HELIX_RETENTION_SECONDS. ``requests`` are those in
    progress at a relay, including streams.
    """

    per_minute: int = 0
    unfinished: int = 0
    stored_bytes: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """The refusal of a submission: the exhausted limit (``rate``, ``bytes`` or ``unfinished``), the seconds to wait."""

    limit: str
    seconds: float


class SubmissionLimits:
    """Enforces owners' limits on submissions. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = Keys(store.namespace)
        self._keep_ms = store.settings.retention_seconds * 1000

    async def admit_turns(
        self,
        owner: str,
        limits: OwnerLimits,
        turn_ids: Sequence[str] = (),
        *,
        count: int = 1,
        size: int = 0,
        cost: float = 1.0,
    ) -> LimitRefusal | None:
        """Count turns towards an owner's limits. Return the refusal if a limit is exhausted, or else None.

        Turns with known ids are noted as unfinished at once; for others call ``note_unfinished`` after storing.
        """
        refusal = None
        with self._store.tolerate_failures("allowance"):
            refusal = await self._try_admit(owner, limits, turn_ids, count, size, cost)
            if refusal and refusal.limit == "unfinished":
                await self._drop_finished(owner)  # another relay may have cleaned the set meanwhile
                refusal = await self._try_admit(owner, limits, turn_ids, count, size, cost)
        return refusal

    async def note_unfinished(self, owner: str, limits: OwnerLimits, turn_ids: Sequence[str]) -> None:
        if limits.unfinished and turn_ids:
            at = await self._store.read_clock_ms()
            key = self._keys.unfinished(owner)
            await self._store.await_reply(self._store.redis.zadd(key, dict.fromkeys(turn_ids, at)))
            await self._store.await_reply(self._store.redis.pexpire(key, _NOTED_MS))

    async def _try_admit(
        self, owner: str, limits: OwnerLimits, turn_ids: Sequence[str], count: int, size: int, cost: float
    ) -> LimitRefusal | None:
        keys = [self._keys.rate(owner), self._keys.stored(owner), self._keys.unfinished(owner)]
        rate = [cost * _MINUTE_MS / limits.per_minute, _MINUTE_MS] if limits.per_minute else [0, 0]
        # Half at once and half over time never exceeds the whole limit within the retention.
        stored = [2 * size * self._keep_ms / limits.stored_bytes, self._keep_ms] if limits.stored_bytes else [0, 0]
        args = [*rate, *stored, limits.unfinished, count, _NOTED_MS, *turn_ids]
        said, number = await self._store.run_script(_ADMIT, keys, args)
        if said == b"admitted":
            return None
        return LimitRefusal(said.decode(), 1.0 if said == b"unfinished" else int(number) / 1000)

    async def _drop_finished(self, owner: str) -> None:
        ask, redis, key = self._store.await_reply, self._store.redis, self._keys.unfinished(owner)
        now = await self._store.read_clock_ms()
        noted = {raw.decode(): at for raw, at in await ask(redis.zrange(key, 0, -1, withscores=True))}
        pipe = redis.pipeline(transaction=False)
        for turn_id in noted:
            pipe.hget(keys_for_turn(self._store.namespace, turn_id).turn(turn_id), "state")
        states = dict(zip(noted, await ask(pipe.execute()), strict=True)) if noted else {}
        ended = [
            turn_id
            for turn_id, state in states.items()
            if state == TurnState.FINISHED.value.encode() or (not state and now - noted[turn_id] > _STORED_WITHIN_MS)
        ]
        if ended:
            await ask(redis.zrem(key, *ended))

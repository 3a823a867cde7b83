"""What is spent today, in the store, so that all relays share it: set aside at the submit, charged at the end.

A turn's record is the truth of what it cost. Reservations are settled from it before every new one, and before anybody
looks; a relay that dies leaves them to the next. Nothing is charged twice: a reservation is settled as it was read.
A turn is charged to the day it was submitted.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.budgets.budget import DAY_SECONDS, MICRO, Spent, day_of, scopes_of, spent_of
from api_client.contract.commands import plain_script
from api_client.contract.counters import label
from api_client.contract.errors import BudgetExceeded
from api_client.contract.keys import Keys, keys_of
from api_client.contract.turn import TurnRequest, TurnState
from api_client.module_log import ModuleLog
from api_client.store import Store

log = ModuleLog(__name__)

_RESERVE, _SETTLE = (plain_script(Path(__file__).with_name(f"{name}.lua")) for name in ("reserve", "settle"))
#: Days are kept so long: a turn may end a week after it was submitted.
_KEEP_MS = 35 * DAY_SECONDS * 1000
#: A reservation whose turn is not there after so many seconds: its relay died before it could store the turn.
_STORED_WITHIN_SECONDS = 60.0
#: With more open reservations than this they are settled once a second only.
_MANY = 500
_FINISHED = TurnState.FINISHED.value.encode()


@dataclass(frozen=True, slots=True)
class _Open:
    """A reservation as it was read."""

    turn_id: str
    text: str
    day: int
    at: float
    amount: int


class Spending:
    """Budgets of an installation. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._budgets = store.settings.budgets
        self._keys = Keys(store.namespace)
        self._settled_at = float("-inf")

    async def reserve(self, turn_id: str, request: TurnRequest) -> bool:
        """Set aside what the turn may cost; False where no budget is about it.

        Raises:
            BudgetExceeded: a budget that it counts for is spent.
        """
        if not self._budgets:
            return False
        scopes = scopes_of(request, self._budgets)
        record = keys_of(self._store.namespace, turn_id).turn(turn_id)
        # A turn that is stored already has its reservation, or is settled.
        if not scopes or await self._store.send("EXISTS", record):
            return False
        await self.settle()
        now = await self._now()
        day = day_of(now)
        limits = [word for scope, entry in scopes.items() for word in (scope, int(self._budgets[entry] * MICRO))]
        most = int(request.cost_budget_usd * MICRO) if request.cost_budget_usd else ""
        keys = [self._keys.spending(day), self._keys.reservations]
        args = [turn_id, day, most, label(request.model), _KEEP_MS, *limits]
        said, *details = await self._store.run(_RESERVE, keys, args)
        if said == b"reserved":
            return True
        scope, spent, limit = details[0].decode(), int(details[1]) / MICRO, int(details[2]) / MICRO
        log.warning("budget.exceeded", scope=scope, spent_usd=spent, limit_usd=limit)
        raise BudgetExceeded(scope, spent, limit, day + DAY_SECONDS, now)

    async def release(self, turn_id: str) -> None:
        """The turn was not stored: nothing is set aside for it any more."""
        text = await self._store.send("HGET", self._keys.reservations, turn_id)
        if text:
            await self._charge(_read(turn_id, text.decode()), 0, "")

    async def settle(self) -> None:
        """Charge what turns have cost, in place of what was set aside for them."""
        names = await self._store.hash(self._keys.reservations)
        if not names or (len(names) > _MANY and time.monotonic() - self._settled_at < 1.0):
            return
        self._settled_at = time.monotonic()
        opened = [_read(raw.decode(), text.decode()) for raw, text in names.items()]
        pipe = self._store.redis.pipeline(transaction=False)
        for each in opened:
            pipe.hmget(keys_of(self._store.namespace, each.turn_id).turn(each.turn_id), "state", "cost_used")
        records = await self._store.ask(pipe.execute())
        now = await self._now()
        for each, (state, cost) in zip(opened, records, strict=True):
            used = int(cost or 0)
            if state == _FINISHED:
                await self._charge(each, used, 1)
            elif state is None and now - each.at > _STORED_WITHIN_SECONDS:
                await self._charge(each, 0, "")
            elif used > each.amount:
                await self._charge(each, used, 0)

    async def today(self) -> list[Spent]:
        """Every budget and what was spent of it today, the most used first."""
        if not self._budgets:
            return []
        await self.settle()
        day = day_of(await self._now())
        stored = await self._store.hash(self._keys.spending(day))
        return spent_of({raw.decode(): int(amount) for raw, amount in stored.items()}, self._budgets, day)

    async def _charge(self, reserved: _Open, cost: int, ended: int | str) -> None:
        keys = [self._keys.spending(reserved.day), self._keys.reservations]
        await self._store.run(_SETTLE, keys, [reserved.turn_id, reserved.text, cost, ended])

    async def _now(self) -> float:
        seconds, micros = await self._store.send("TIME")
        return float(seconds) + float(micros) / 1e6


def _read(turn_id: str, text: str) -> _Open:
    data: dict[str, Any] = json.loads(text)
    return _Open(turn_id, text, int(data["day"]), float(data["at"]), int(data["amount"]))

"""Enforces daily budgets: money is reserved at submission and charged when a turn ends, to the day of its submission.

A turn's record holds its true cost, from which reservations are settled. So a dead relay leaves no gap, and nothing is
charged twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api_client.budgets.budget import ASIDE, DAY_SECONDS, MICRO, BudgetSpending, find_day, find_limits, list_spending
from api_client.budgets.errors import BudgetExceeded
from api_client.budgets.keys import BudgetKeys
from api_client.contract.admission import Admission, Submission
from api_client.contract.counters import clean_label
from api_client.contract.keys import keys_for_turn
from api_client.contract.turn import TurnRequest, TurnState
from api_client.interruptions.registry import count_all_added_runs
from api_client.store import Store
from api_client.store.commands import Word, load_plain_script
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

_RESERVE, _SETTLE = (load_plain_script(Path(__file__).with_name(f"{name}.lua")) for name in ("reserve", "settle"))
#: Lifetime of a day's spending; a turn may end a week after its submission.
_KEEP_MS = 35 * DAY_SECONDS * 1000
#: A reservation without a turn is dropped after this time: its relay died before it stored the turn.
_STORED_WITHIN_SECONDS = 60.0
#: Above this number of reservations, settling is limited to once per second.
_MANY = 500
_FINISHED = TurnState.FINISHED.value.encode()
#: Advised delay before retrying while reservations hold the rest of a budget, in seconds.
_AGAIN_SECONDS = 10.0
#: Outcomes that show the price of a run, even if the run cost nothing.
_TELLING = {b"passed", b"passed_after_retry", b"passed_by_fallback", b"failed", b"incomplete", b"refused"}


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The money reserved for one unfinished turn. ``guessed`` means that the model's price was unknown."""

    turn_id: str
    text: str
    day: int
    at: float
    amount: int
    scopes: tuple[str, ...]
    runs: int
    guessed: bool


class BudgetLedger(Admission):
    """Enforces daily budgets by reserving money when a turn is submitted and charging its real cost when it ends."""

    setting = "budgets"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._budgets = store.settings.budgets
        self._keys = BudgetKeys(store.namespace)
        self._settled_at = float("-inf")
        self._days: dict[str, int] = {}
        self._at_work: dict[tuple[int, str], int] = {}

    async def hold(self, turns: Sequence[Submission]) -> None:
        """Reserve the highest possible cost of these turns in their budgets, for all turns or for none.

        Raises ``BudgetExceeded`` if a budget has no room.
        """
        aside = [
            {
                "id": turn.turn_id,
                "scopes": scopes,
                "model": clean_label(turn.request.model),
                **_spending_limits(turn.request),
            }
            for turn in turns
            if (scopes := find_limits(turn.request, self._budgets)) and not await self._is_stored(turn)
        ]
        if aside:
            await self.settle_reservations()
            await self._reserve_turns(aside)

    async def admit_run(self, turn_id: str, request: TurnRequest, model: str) -> None:
        """Check that a turn's budgets allow another agent run, given the real costs so far.

        A run beyond the submission's reservation is reserved now. ``model`` is about to run. Raises ``BudgetExceeded``.
        """
        scopes = find_limits(request, self._budgets)
        if not scopes:
            return
        await self.settle_reservations()
        if turn_id not in self._days:  # the turn was submitted just now, or before budgets were set
            await self._reserve_turns(
                [{"id": turn_id, "scopes": scopes, "model": clean_label(request.model), **_spending_limits(request)}]
            )
        more = await self._reserve_one_more(turn_id, clean_label(request.model))
        now = await self._store.read_clock_ms() / 1000
        day = self._days.get(turn_id, find_day(now))
        stored = await self._store.read_hash(self._keys.spending_key(day))
        for scope, limit in {*scopes, *find_limits(replace(request, model=model), self._budgets)}:
            total, aside = (int(stored.get(f"{before}{scope}".encode(), 0)) for before in ("", ASIDE))
            spent = total - aside + self._at_work.get((day, scope), 0)
            if spent >= limit or (more and total - more >= limit):
                left = day + DAY_SECONDS
                raise BudgetExceeded(
                    scope, spent / MICRO, (total - more - spent) / MICRO, limit / MICRO, left, left - now
                )

    async def _reserve_one_more(self, turn_id: str, model: str) -> int:
        """Reserve money for another run of a turn if its reservation is used up. Return the added amount."""
        record = keys_for_turn(self._store.namespace, turn_id).turn(turn_id)
        while text := await self._store.send_command("HGET", self._keys.reservations, turn_id):
            each = _parse_reservation(turn_id, text.decode())
            cost, attempt = await self._store.send_command("HMGET", record, "cost_used", "attempt")
            price = int(await self._store.send_command("HGET", self._keys.prices, model) or 0)
            used = int(cost or 0)
            more = used + (price or used // max(1, int(attempt or 1))) - each.amount
            if more <= 0 or await self._charge_turn(each, each.amount + more, 0):
                return max(0, more)
        return 0

    async def _reserve_turns(self, turns: list[dict[str, Any]]) -> None:
        now = await self._store.read_clock_ms() / 1000
        day = find_day(now)
        said = b""
        with self._store.tolerate_failures("reservation"):
            said, *details = await self._store.run_script(
                _RESERVE, self._key_names(day), [json.dumps(turns), day, _KEEP_MS]
            )
        if said in {b"", b"reserved"}:
            return
        scope = details[0].decode()
        spent, aside, ahead, limit = (int(amount) / MICRO for amount in details[1:])
        log.warning("budget.exceeded", scope=scope, spent_usd=spent, set_aside_usd=aside, limit_usd=limit)
        resets_at = day + DAY_SECONDS
        seconds = resets_at - now if spent + ahead >= limit else _AGAIN_SECONDS
        raise BudgetExceeded(scope, spent, aside, limit, resets_at, seconds)

    async def _is_stored(self, turn: Submission) -> bool:
        keys, key = keys_for_turn(self._store.namespace, turn.turn_id), turn.idempotency_key
        known = [keys.turn(turn.turn_id), *([keys.idempotency(turn.request.owner, key)] if key else [])]
        return bool(await self._store.send_command("EXISTS", *known))

    def _key_names(self, day: int) -> list[str]:
        return [self._keys.spending_key(day), self._keys.reservations, self._keys.prices]

    async def release(self, turn: Submission) -> None:
        """Cancel the reservation of a submitted turn that was not stored."""
        text = self._budgets and await self._store.send_command("HGET", self._keys.reservations, turn.turn_id)
        if text and not await self._is_stored(replace(turn, idempotency_key="")):
            await self._charge_turn(_parse_reservation(turn.turn_id, text.decode()), 0, "")

    async def settle_reservations(self) -> None:
        """Replace the reserved amounts of turns by their real costs."""
        names = await self._store.read_hash(self._keys.reservations)
        if not names:
            self._days, self._at_work = {}, {}
        if not names or (len(names) > _MANY and time.monotonic() - self._settled_at < 1.0):
            return
        self._settled_at = time.monotonic()
        opened, pipe = list[_Reservation](), self._store.redis.pipeline(transaction=False)
        for raw, text in names.items():
            with self._store.tolerate_failures(f"settlement of {(turn_id := raw.decode())}"):
                record = keys_for_turn(self._store.namespace, turn_id).turn(turn_id)
                opened.append(_parse_reservation(turn_id, text.decode()))
                pipe.hmget(record, "state", "cost_used", "attempt", "outcome")
        records = await self._store.await_reply(pipe.execute(raise_on_error=False))
        now = await self._store.read_clock_ms() / 1000
        self._days, self._at_work = {each.turn_id: each.day for each in opened}, {}
        for each, record in zip(opened, records, strict=True):
            with self._store.tolerate_failures(f"settlement of {each.turn_id}"):
                state, cost, attempt, outcome = record  # an error does not unpack into four values
                used, runs = int(cost or 0), max(1, int(attempt or 1))
                for scope in each.scopes if state != _FINISHED else ():
                    self._at_work[each.day, scope] = self._at_work.get((each.day, scope), 0) + used
                if state == _FINISHED:
                    await self._charge_turn(each, used, 1, -(-used // runs) if used or outcome in _TELLING else "")
                elif state is None and now - each.at > _STORED_WITHIN_SECONDS:
                    await self._charge_turn(each, 0, "")
                elif used > each.amount or (each.guessed and used):
                    await self._charge_turn(each, max(used, each.runs * used // runs), 0)

    async def read_today(self) -> list[BudgetSpending]:
        """Return today's spending for every budget, the most used budget first."""
        if not self._budgets:
            return []
        await self.settle_reservations()
        day = find_day(await self._store.read_clock_ms() / 1000)
        stored = await self._store.read_hash(self._keys.spending_key(day))
        return list_spending({raw.decode(): int(amount) for raw, amount in stored.items()}, self._budgets, day)

    async def _charge_turn(self, reserved: _Reservation, cost: int, ended: int | str, price: int | str = "") -> bool:
        args: list[Word] = [reserved.turn_id, reserved.text, cost, ended, price]
        return bool(await self._store.run_script(_SETTLE, self._key_names(reserved.day), args))


def _spending_limits(request: TurnRequest) -> dict[str, int]:
    return {"runs": request.max_attempts + count_all_added_runs(request), "cap": int(request.cost_limit_usd * MICRO)}


def _parse_reservation(turn_id: str, text: str) -> _Reservation:
    data: dict[str, Any] = json.loads(text)
    amount, runs, scopes = int(data["amount"]), int(data["runs"]), tuple(data["scopes"])
    return _Reservation(
        turn_id, text, int(data["day"]), float(data["at"]), amount, scopes, runs, bool(data.get("guessed"))
    )

"""Adds up finished turns by owner, API key or session, which have too many values for counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.contract.counters import NONE
from api_client.contract.owners import format_owner
from api_client.figures.rollup import add_turns
from api_client.figures.statistics import RetryShare, TurnRow
from api_client.store import Store
from api_client.store.read_script import ReadScript

#: Breakdowns that are computed from the records of finished turns while they are kept.
ACCOUNTS = ("owner", "key")
#: Turns that one command adds up, few enough to block the store for a few milliseconds.
PAGE = 500
_LUA = Path(__file__).with_name("lua") / "tally.lua"


@dataclass(slots=True)
class TurnGroup:
    """The totals of a group of finished turns: the number of turns and runs, tokens and costs."""

    turns: int = 0
    runs: int = 0
    tokens: int = 0
    cost: int = 0
    rejected: int = 0
    failed_tokens: int = 0
    failed_cost_usd: float = 0.0

    def add(self, values: list[Any]) -> None:
        """Add the totals of more turns to those of this group, in the order that the store returns them."""
        *counts, failed_cost = values
        for name, count in zip(("turns", "runs", "tokens", "cost", "rejected", "failed_tokens"), counts, strict=True):
            setattr(self, name, getattr(self, name) + int(count))
        self.failed_cost_usd += float(failed_cost)


#: The values of the fields, the outcome, and ``1`` if the agent was asked again.
Groups = dict[tuple[str, ...], TurnGroup]
Question = tuple[float, float, tuple[str, ...]]


class TurnTally:
    """Computes totals of the finished turns of a period, by owner, API key or session.

    Only one computation runs at a time. Methods raise ``StoreUnavailable``.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._keys = store, store.keys
        self._add_up = ReadScript(store.redis, _LUA)
        self._running: dict[Question, asyncio.Task[Groups]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def list_accounts(self, since: float, until: float, by: str) -> tuple[TurnRow, ...]:
        """Return a row per owner or API key for the turns that finished in a period (epoch seconds)."""
        rows: dict[str, TurnRow] = {}
        groups = await self._read_groups(since, until, *ACCOUNTS)
        for (owner, key, outcome, again), group in groups.items():
            name = (format_owner(owner, key) if by == "owner" else key) or NONE
            row = rows.setdefault(name, TurnRow(name=name))
            add_turns(row, {"outcome": outcome, "asked_again": again}, group.turns)
            row.runs += group.runs
            row.tokens += group.tokens
            row.cost_usd += group.cost / 1e6
            row.rejected += group.rejected
            row.failed_tokens += group.failed_tokens
            row.failed_cost_usd += group.failed_cost_usd
        return tuple(sorted(rows.values(), key=lambda row: (-row.cost_usd, -row.turns, row.name)))

    async def list_sessions(self, since: float, until: float) -> list[RetryShare]:
        """Return the numbers of finished and retried turns of a period, for each session."""
        shares: dict[str, list[int]] = {}
        for (session, _, again), group in (await self._read_groups(since, until, "session_id")).items():
            share = shares.setdefault(session, [0, 0])
            share[0] += group.turns * (again == "1")
            share[1] += group.turns
        return [RetryShare(name=name, rejected=again, validated=turns) for name, (again, turns) in shares.items()]

    async def _read_groups(self, since: float, until: float, *fields: str) -> Groups:
        """Compute the totals of a period by these fields, or wait if the same computation is already running."""
        question = round(until - since), round(time.time() - until), fields
        if not (running := self._running.get(question)):
            running = self._running[question] = asyncio.create_task(self._add_up_turns(since, until, fields))
            running.add_done_callback(lambda _: self._running.pop(question))
        return await asyncio.shield(running)  # the others wait on if this caller leaves

    async def _add_up_turns(self, since: float, until: float, fields: tuple[str, ...]) -> Groups:
        groups: Groups = {}
        async with self._one_at_a_time, aclosing(self._read_pages(int(since * 1000), int(until * 1000))) as pages:
            async for ids in pages:
                keys = [name_key(turn_id) for name_key in (self._keys.turn, self._keys.attempts) for turn_id in ids]
                for row in await self._store.await_reply(self._add_up(keys=keys, args=fields)):
                    labels = tuple(label.decode("utf-8", "replace") for label in row[: len(fields) + 2])
                    groups.setdefault(labels, TurnGroup()).add(row[len(labels) :])
        return groups

    async def _read_pages(self, low: int, high: int) -> AsyncGenerator[list[str]]:
        finished, redis, same = self._keys.finished, self._store.redis, 0
        while True:  # `same` turns of the page before finished in the millisecond `low`
            read = redis.zrange(finished, low, high, byscore=True, withscores=True, offset=same, num=PAGE)
            if not (found := await self._store.await_reply(read)):
                return
            yield [raw.decode() for raw, _ in found]
            at = int(found[-1][1])
            same = sum(int(score) == at for _, score in found) + (same if at == low else 0)
            low = at

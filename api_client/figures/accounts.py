"""Figures by owner or key: too many for counters. The records of finished turns have them, as long as they are kept."""

from __future__ import annotations

from typing import Any

from api_client.contract.counters import NONE
from api_client.figures.rollup import add_turns
from api_client.figures.stats import TurnRow
from api_client.store import Store

ACCOUNTS = ("owner", "key")
_BATCH = 1000


async def rows_by_account(store: Store, since: float, until: float, by: str) -> tuple[TurnRow, ...]:
    """Turns that finished between two times (seconds since the epoch), what they cost with all their runs, by account.

    Raises:
        RedisError: the store does not answer.
    """
    rows: dict[str, TurnRow] = {}
    for keys in store.shards:
        ids: list[Any] = await store.redis.zrangebyscore(keys.finished, int(since * 1000), int(until * 1000))
        for start in range(0, len(ids), _BATCH):
            pipe = store.redis.pipeline(transaction=False)
            for turn_id in ids[start : start + _BATCH]:
                pipe.hmget(keys.turn(turn_id.decode()), by, "outcome", "retries", "tokens_used", "cost_used", "attempt")
            for name, outcome, retries, tokens, cost, attempts in await pipe.execute():
                if outcome is not None:
                    row = rows.setdefault((name or b"").decode() or NONE, TurnRow(name=(name or b"").decode() or NONE))
                    label_values = {"outcome": outcome.decode(), "asked_again": str(int(int(retries or 0) > 0))}
                    add_turns(row, label_values, 1)
                    row.runs += int(attempts or 0)
                    row.tokens += int(tokens or 0)
                    row.cost_usd += int(cost or 0) / 1e6
    return tuple(sorted(rows.values(), key=lambda row: (-row.cost_usd, -row.turns, row.name)))

"""Figures by owner or key: too many for counters. The records of finished turns have them, as long as they are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from api_client.contract.counters import NONE
from api_client.contract.values.owners import shown_owner
from api_client.figures.rollup import add_turns
from api_client.figures.stats import TurnRow
from api_client.store import Store

ACCOUNTS = ("owner", "key")
_BATCH = 1000
_FIELDS = ("owner", "key", "outcome", "retries", "tokens_used", "cost_used", "attempt")
_FACTS = ("decision", "completion", "usage")


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
                pipe.hmget(keys.turn(turn_id.decode()), *_FIELDS)
            found = list(zip(ids[start : start + _BATCH], await pipe.execute(), strict=True))
            failing = {turn_id: int(one[-1] or 0) for turn_id, one in found if one[2] and _has_failed(one)}
            for turn_id, attempts in failing.items():
                facts = [f"{n}:{name}" for n in range(1, attempts + 1) for name in _FACTS]
                pipe.hmget(keys.attempts(turn_id.decode()), facts)
            failed = dict(zip(failing, await pipe.execute() if failing else (), strict=True))
            for turn_id, (owner, key, outcome, retries, tokens, cost, attempts) in found:
                if outcome is not None:
                    who, holder = (owner or b"").decode(), (key or b"").decode()
                    name = (shown_owner(who, holder) if by == "owner" else holder) or NONE
                    row = rows.setdefault(name, TurnRow(name=name))
                    _add_failed(row, failed.get(turn_id, ()))
                    label_values = {"outcome": outcome.decode(), "asked_again": str(int(int(retries or 0) > 0))}
                    add_turns(row, label_values, 1)
                    row.runs += int(attempts or 0)
                    row.tokens += int(tokens or 0)
                    row.cost_usd += int(cost or 0) / 1e6
    return tuple(sorted(rows.values(), key=lambda row: (-row.cost_usd, -row.turns, row.name)))


def _has_failed(turn: Sequence[bytes | None]) -> bool:
    """Whether a turn may have runs whose answer was not accepted."""
    return int(turn[3] or 0) > 0 or int(turn[-1] or 0) > 1 or turn[2] != b"passed"


def _add_failed(row: TurnRow, facts: Sequence[bytes | None]) -> None:
    """Add the runs of a turn whose answer was not accepted; ``facts``: ``_FACTS`` of each, one after the other."""
    for decision, completion, usage in zip(*[iter(facts)] * len(_FACTS), strict=True):
        if decision == b"accept":
            continue
        used = json.loads(usage or b"{}")
        row.rejected += json.loads(completion or b"{}").get("verdict") == "complete"
        row.failed_tokens += int(used.get("input_tokens") or 0) + int(used.get("output_tokens") or 0)
        row.failed_cost_usd += float(used.get("cost_usd") or 0)

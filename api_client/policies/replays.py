"""Results of ``turns replay-policy``, kept for the page ``/policies``: the last few results, newest first."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from api_client.store import Store

#: This many results are kept.
MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReplay:
    """One comparison of a policy with what was decided.

    Attributes:
        replay_id: names it on the page.
        at: when, in seconds since the epoch. by: who asked, as orders are recorded.
        file: the policy file's name. policy: its hash.
        since_seconds: how far back it looked. model: of this model alone, or empty.
        found: the comparison (``Comparison.to_dict``).
    """

    replay_id: str
    at: float
    by: str
    file: str
    policy: str
    since_seconds: float
    model: str
    found: dict[str, Any]


class PolicyReplays:
    """Keeps and reads them. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        #: List: the last replays (JSON), newest first.
        self._key = store.keys.named("policies:replays")

    async def keep(self, replay: PolicyReplay) -> None:
        """Keep a result; the oldest goes when there are too many."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.lpush(self._key, json.dumps(asdict(replay)))
        pipe.ltrim(self._key, 0, MOST - 1)
        await self._ask(pipe.execute())

    async def all(self) -> list[PolicyReplay]:
        """Every result that is kept, newest first; those of a later release are left out."""
        found = []
        for text in await self._ask(self._redis.lrange(self._key, 0, -1)):
            try:
                found.append(PolicyReplay(**json.loads(text)))
            except (ValueError, TypeError):
                continue
        return found

    async def get(self, replay_id: str) -> PolicyReplay | None:
        """The result of this id; None where it is not kept, or no longer."""
        return next((each for each in await self.all() if each.replay_id == replay_id), None)

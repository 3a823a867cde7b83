"""Stores the last results of ``turns policy replay`` for the page ``/policies``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from api_client.store import Store

MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReplay:
    """A stored comparison of a policy's decisions on past answers with the decisions made then.

    ``policy`` is the policy's hash; ``model`` is empty for all models.
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
    """Stores comparisons of policies with past decisions. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        #: Redis list of the last comparisons (JSON), newest first.
        self._key = store.keys.key_named("policies:replays")

    async def store_replay(self, replay: PolicyReplay) -> None:
        """Store a comparison, and delete the oldest ones beyond the limit."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.lpush(self._key, json.dumps(asdict(replay)))
        pipe.ltrim(self._key, 0, MOST - 1)
        await self._ask(pipe.execute())

    async def list_replays(self) -> list[PolicyReplay]:
        """Return all stored comparisons that this version can read, newest first."""
        found = []
        for text in await self._ask(self._redis.lrange(self._key, 0, -1)):
            try:
                found.append(PolicyReplay(**json.loads(text)))
            except (ValueError, TypeError):
                continue
        return found

    async def find_replay(self, replay_id: str) -> PolicyReplay | None:
        return next((each for each in await self.list_replays() if each.replay_id == replay_id), None)

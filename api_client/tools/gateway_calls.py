"""Reads the log of tool calls that passed the tool gateway."""

from __future__ import annotations

import json

from api_client.contract.keys import KeyNames, named_key, named_keys
from api_client.contract.tool_call_row import CallRow
from api_client.store import Store


class CallLogKeys(KeyNames):
    """Names the Redis keys of the tool calls' log."""

    #: Hash: the turn's record, whose token is compared.
    record = named_keys("turn:")
    #: Hash: the tool calls of a turn (JSON), by ``CallRow.name``.
    calls = named_keys("turn:", ":tool_calls")
    #: Hash: the results of these calls (JSON).
    results = named_keys("turn:", ":tool_results")
    #: List: counters that are not yet in the metrics hashes.
    counters = named_key("metrics:pending")


class GatewayCalls:
    """Reads the tool calls that agents made through the tool gateway."""

    def __init__(self, store: Store) -> None:
        self._store, self._keys = store, CallLogKeys(store.namespace)

    async def read_calls(self, turn_id: str) -> list[CallRow]:
        """Return a turn's tool calls in the order in which they were made. Raises ``StoreUnavailable``."""
        found = await self._store.read_hash(self._keys.calls(turn_id))
        return [CallRow.from_dict(json.loads(text)) for _, text in sorted(found.items())]

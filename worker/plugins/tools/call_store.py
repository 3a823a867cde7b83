"""The call log of turns in the store: a row for each tool call, and the results that a repeated delivery may need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_client.contract.interruption import MAX_WAIT_SECONDS
from api_client.contract.keys import KeyNames, named_keys
from api_client.store import Store
from api_client.store.commands import Word, load_plain_script
from worker.plugins.tools.call_matching import CallRow

_WRITE = load_plain_script(Path(__file__).with_name("write_call.lua"))


class CallLogKeys(KeyNames):
    """Names the Redis keys of the call log."""

    #: Hash: the turn's record, whose token is compared.
    record = named_keys("turn:")
    #: Hash: the tool calls of a turn (JSON), by ``CallRow.name``.
    calls = named_keys("turn:", ":tool_calls")
    #: Hash: the results of these calls (JSON).
    results = named_keys("turn:", ":tool_results")


class RunFenced(Exception):
    """Raised when another worker holds the turn, so that this run may make no more calls."""


class CallStore:
    """Reads and writes the call log of turns."""

    def __init__(self, store: Store) -> None:
        self._store, self._keys = store, CallLogKeys(store.namespace)
        # From the last call on: the turn may wait for a person as long.
        self._kept_ms = int((store.settings.retention_seconds + MAX_WAIT_SECONDS) * 1000)

    async def read_calls(self, turn_id: str) -> list[CallRow]:
        """Return the tool calls of a turn in their order. Raises ``StoreUnavailable``."""
        found = await self._store.read_hash(self._keys.calls(turn_id))
        return [CallRow.from_dict(json.loads(text)) for _, text in sorted(found.items())]

    async def write_call(self, turn_id: str, token: str, row: CallRow, result: Mapping[str, Any] | None = None) -> None:
        """Write a row, and the call's result if it is known.

        Raises:
            RunFenced: another worker holds the turn.
            StoreUnavailable: nothing is known to be written.
        """
        keys = [self._keys.record(turn_id), self._keys.calls(turn_id), self._keys.results(turn_id)]
        said = json.dumps(result) if result is not None else ""
        arguments: list[Word] = [token, row.name, json.dumps(row.to_dict()), said, self._kept_ms]
        if not await self._store.run_script(_WRITE, keys, arguments):
            raise RunFenced

    async def read_result(self, turn_id: str, name: str) -> dict[str, Any] | None:
        """Return the recorded result of a call, or None if there is none. Raises ``StoreUnavailable``."""
        text = await self._store.send_command("HGET", self._keys.results(turn_id), name)
        return json.loads(text) if text else None

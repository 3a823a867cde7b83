"""Writes the call log of turns, counts calls, and reads recorded results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from api_client.contract.counters import count_duration, counter_field
from api_client.contract.interruption import MAX_WAIT_SECONDS
from api_client.contract.tool_call_row import CallRow, CallState
from api_client.store import Store
from api_client.store.commands import Word, load_plain_script
from api_client.tools.gateway_calls import GatewayCalls

_WRITE = load_plain_script(Path(__file__).with_name("write_call.lua"))


class RunFenced(Exception):
    """Raised when another worker holds the turn, so that this run must make no more calls."""


class CallStore(GatewayCalls):
    """Writes tool calls to the logs of their turns, and reads recorded results."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        # Counted from the last call, because the turn may wait for a person for as long.
        self._kept_ms = int((store.settings.retention_seconds + MAX_WAIT_SECONDS) * 1000)

    async def write_call(self, turn_id: str, token: str, row: CallRow, result: str = "") -> None:
        """Write the row of a tool call, and the call's result (JSON) if it is known.

        Raises ``RunFenced`` if another worker holds the turn, ``StoreUnavailable`` if nothing is known to be written.
        """
        of_turn = self._keys.record(turn_id), self._keys.calls(turn_id), self._keys.results(turn_id)
        keys = [*of_turn, self._keys.counters]
        counts = "\n".join(f"{name}\t{by}" for name, by in count_call(row).items())
        arguments: list[Word] = [token, row.name, json.dumps(row.to_dict()), result, self._kept_ms, counts]
        if not await self._store.run_script(_WRITE, keys, arguments):
            raise RunFenced

    async def read_result(self, turn_id: str, name: str) -> dict[str, Any] | None:
        """Return the recorded result of a call, or None if there is none. Raises ``StoreUnavailable``."""
        text = await self._store.send_command("HGET", self._keys.results(turn_id), name)
        return json.loads(text) if text else None


def count_call(row: CallRow) -> dict[str, int]:
    """Return the metrics counters of a finished tool call, or none for a call in progress."""
    if row.state is CallState.BEGUN:
        return {}
    counts = {counter_field("tool.called", row.server, row.tool, row.outcome): 1}
    if row.state in {CallState.DONE, CallState.FAILED, CallState.UNKNOWN} and not row.earlier:
        counts |= count_duration("time.tool", row.took_ms, row.server, row.tool)
    if cost := int(row.cost_usd * 1e6):
        counts[counter_field("cost.tools", row.server)] = cost
    return counts

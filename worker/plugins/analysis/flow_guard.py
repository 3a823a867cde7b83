"""Rolls back a flow version when too many of its turns fail (ADR-034).

A version is rolled back when its failure rate in the last hour exceeds its limit (``[flow.v3] max_failure_rate = 0.2``)
with statistical confidence.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping

import structlog

from api_client.contract.counters import clean_label, parse_field
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.figures.figure_reader import read_buckets
from api_client.policies.flows import GUARD, FlowVersions, Rollback
from api_client.store import Store
from api_client.store.connection import SingleConnection
from api_client.workers.shared_role import SharedRole

log = structlog.get_logger()

_LOOK_SECONDS, _HELD_SECONDS = 2.0, 10.0
_GUARD_KEY = "flows:guard"
#: How many minutes of counters are considered.
_MINUTES = 60
#: Standard deviations above the limit: one false alarm in 740 checks by chance.
_SIGMA = 3.0


def lower_failure_bound(failed: int, turns: int) -> float:
    """Return the lower confidence bound of a failure rate, computed with Wilson's formula."""
    if not turns:
        return 0.0
    rate, z2 = failed / turns, _SIGMA**2
    spread = _SIGMA * math.sqrt(rate * (1 - rate) / turns + z2 / (4 * turns**2))
    return max(0.0, (rate + z2 / (2 * turns) - spread) / (1 + z2 / turns))


def count_finished(counters: Mapping[str, int], version: str) -> tuple[int, int]:
    """Return how many turns of a flow version failed and how many finished. Cancelled turns do not count."""
    failed = turns = 0
    for field, value in counters.items():
        name, labels = parse_field(field)
        if name != "turn.finished" or labels[2] != clean_label(version) or labels[0] == Outcome.CANCELLED:
            continue
        turns += value
        failed += value * (not Outcome(labels[0]).success)
    return failed, turns


class FlowGuard:
    """Polls in a worker process and rolls back a flow version when too many of its turns fail."""

    def __init__(self, settings: Settings, connection: SingleConnection | None = None) -> None:
        bounds = {flow: block.get("max_failure_rate") for flow, block in settings.flow_settings.items()}
        self._bounds = {flow: bound for flow, bound in bounds.items() if bound and len(settings.flow_version) > 1}
        self._versions = settings.flow_version
        self._store = Store(settings, connection)
        self._flows = FlowVersions(self._store)
        self._role = SharedRole(self._store, self._store.keys.key_named(_GUARD_KEY), _HELD_SECONDS)
        self.name, self.seconds = "flow-guard", _LOOK_SECONDS if self._bounds else 0.0

    async def leave(self) -> None:
        """Do nothing when this process stops, because another process takes over within seconds."""

    async def poll(self) -> None:
        """Check the failure rate of every flow version, and roll back versions above their limit."""
        if not await self._role.acquire_role():
            return
        said = await self._flows.read_all()
        for version, bound in self._bounds.items():
            note = said.get(version)
            if note and not note.resumed:
                continue
            failed, turns = count_finished(await self._read_counters(note.at if note else 0.0), version)
            if lower_failure_bound(failed, turns) > bound and self._has_alternative(version, said):
                why = f"{failed} of {turns} turns failed; the bound is {bound:.0%}"
                said[version] = Rollback(at=time.time(), by=GUARD, why=why)
                await self._flows.record_rollback(version, said[version])
                log.error("flow.rolled_back", flow=version, why=why)

    async def _read_counters(self, since: float) -> Counter[str]:
        now = time.time() // 60 * 60
        starts = [at for at in (now - 60 * ago for ago in range(_MINUTES)) if at >= since // 60 * 60]
        return sum(await read_buckets(self._store, [("minute", int(at)) for at in starts]), Counter[str]())

    def _has_alternative(self, version: str, said: Mapping[str, Rollback]) -> bool:
        gone = {name for name, note in said.items() if not note.resumed}
        return bool(set(self._versions) - gone - {version})

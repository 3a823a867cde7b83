"""Rolls a flow version back by itself when too many of its turns end without an accepted answer (ADR-034).

A version may have a bound in the settings file: ``[flow.v3] max_failure_rate = 0.2``. One process of an installation
looks at the counters of the last hour every other second. It rolls a version back when its failure rate is above the
bound beyond reasonable doubt, so that three bad turns do not end a good version. Turns that have it keep it.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import structlog

from api_client.contract.counters import label, parse, read_pending
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.policies.flows import RolledBack, read_notes
from worker.poller import Poller
from worker.turns.record.store import connect

log = structlog.get_logger()

#: Who rolled back, where it was no person.
BY = "guard"
_LOOK_SECONDS, _HELD_MS = 2.0, 10_000
#: Counters of so long count, in minutes.
_MINUTES = 60
#: Standard deviations by which the rate has to be above the bound: one false alarm in 740 looks at chance alone.
_SIGMA = 3.0


def lowest(failed: int, turns: int) -> float:
    """The least failure rate that these turns leave credible: Wilson's lower bound at ``_SIGMA``."""
    if not turns:
        return 0.0
    rate, z2 = failed / turns, _SIGMA**2
    spread = _SIGMA * math.sqrt(rate * (1 - rate) / turns + z2 / (4 * turns**2))
    return max(0.0, (rate + z2 / (2 * turns) - spread) / (1 + z2 / turns))


def ended(counters: Mapping[str, int], version: str) -> tuple[int, int]:
    """Of a version's finished turns: how many failed, and how many there are. Cancelled ones say nothing of it."""
    failed = turns = 0
    for field, value in counters.items():
        name, labels = parse(field)
        if name != "turn.finished" or labels[2] != label(version) or labels[0] == Outcome.CANCELLED:
            continue
        turns += value
        failed += value * (not Outcome(labels[0]).success)
    return failed, turns


def notes(store: Any, keys: Keys) -> dict[str, RolledBack]:
    """What is noted of versions that were rolled back or resumed. Raises ``RedisError``."""
    return read_notes(store.hgetall(keys.flows))


class FlowGuard:
    """The thread of a worker process that watches over versions with a bound. Without one it does nothing."""

    def __init__(self, settings: Settings) -> None:
        bounds = {flow: block.get("max_failure_rate") for flow, block in settings.flow_settings.items()}
        self._bounds = {flow: bound for flow, bound in bounds.items() if bound and len(settings.flow_version) > 1}
        self._versions = settings.flow_version
        self._shards = [Keys(settings.namespace, shard) for shard in range(settings.shards)]
        self._store: Any = connect(settings, answer_seconds=2.0, resends=0) if self._bounds else None
        self._me = secrets.token_hex(8)
        self._poller = Poller("flow-guard", self.look, _LOOK_SECONDS)

    def start(self) -> None:
        """Start the thread, where a version has a bound."""
        if self._bounds:
            self._poller.start()

    def close(self) -> None:
        """Stop; another process goes on within seconds."""
        self._poller.close()

    def look(self) -> None:
        """One round. Raises ``RedisError``."""
        if not self._is_mine():
            return
        said = notes(self._store, self._shards[0])
        for version, bound in self._bounds.items():
            note = said.get(version)
            if note and not note.resumed:
                continue
            failed, turns = ended(self._counted(note.at if note else 0.0), version)
            if lowest(failed, turns) > bound and self._another(version, said):
                said[version] = self._roll_back(version, f"{failed} of {turns} turns failed; the bound is {bound:.0%}")

    def _is_mine(self) -> bool:
        """Whether this process looks, and no other: until it is silent for ``_HELD_MS``."""
        key = self._shards[0].flow_guard
        if self._store.set(key, self._me, nx=True, px=_HELD_MS):
            return True
        if self._store.get(key) != self._me.encode():
            return False
        self._store.pexpire(key, _HELD_MS)
        return True

    def _counted(self, since: float) -> Counter[str]:
        """What was counted in the last hour, and not before the minute of ``since``; pending counters included."""
        now = time.time()
        starts = [at for at in (now - 60 * ago for ago in range(_MINUTES)) if at // 60 >= since // 60]
        found: Counter[str] = Counter()
        for keys in self._shards:
            pipe = self._store.pipeline(transaction=True)
            pipe.lrange(keys.pending, 0, -1)
            for at in starts:
                pipe.hgetall(keys.bucket("minute", at))
            waiting, *hashes = pipe.execute()
            for at, counted in map(read_pending, waiting):
                if starts and at // 60 >= starts[-1] // 60:
                    found.update(counted)
            for stored in hashes:
                found.update({field.decode(): int(value) for field, value in stored.items()})
        return found

    def _another(self, version: str, said: Mapping[str, RolledBack]) -> bool:
        """Whether a version is left to go back to."""
        gone = {name for name, note in said.items() if not note.resumed}
        return bool(set(self._versions) - gone - {version})

    def _roll_back(self, version: str, why: str) -> RolledBack:
        note = RolledBack(at=time.time(), by=BY, why=why)
        self._store.hset(self._shards[0].flows, version, note.to_json())
        log.error("flow.rolled_back", flow=version, why=why)
        return note

"""Leases: a turn is ours only as long as the store confirms it.

One thread per process keeps all leases, over a connection of its own with short time-outs and no resends, so that a
store that hangs cannot hold it up beyond the leases. It fences itself by its own clock: without an acknowledged beat in
time the run is told to stop before the lease ends, because after that another worker may take the turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from redis.exceptions import RedisError

from api_client.contract.settings import Settings
from worker.turns.record.claim import Claim, Fenced
from worker.turns.record.ledger import Ledger
from worker.turns.record.store import connect

log = structlog.get_logger()

#: Beats per lease, and the part of the lease that is kept back for stopping the agent.
_BEATS_PER_LEASE = 4
_MARGIN = 0.25


class Lease:
    """One held turn. A runner polls it as its ``Stop``: ``reason`` to end the agent, ``lease_ends`` to outlive none."""

    def __init__(self, claim: Claim, seconds: float, deadline: float) -> None:
        self.claim = claim
        self.deadline = deadline
        self._seconds = seconds
        self._reason = ""
        self._acknowledged = claim.taken_at

    @property
    def lease_ends(self) -> float:
        """Until when, by ``time.monotonic()``, the turn is surely ours."""
        return self._acknowledged + self._seconds * (1 - _MARGIN)

    @property
    def lapsed(self) -> bool:
        """True when only the store can tell whether the turn is still ours."""
        return time.monotonic() > self.lease_ends

    @property
    def reason(self) -> str:
        """Why the run must stop: cancelled, expired, shutdown or fenced; empty while it may go on."""
        if not self._reason:
            if self.lapsed:
                # Kept: whoever reads this stops the agent, and a beat that succeeds later does not bring it back.
                self._reason = "fenced"
            elif time.monotonic() > self.deadline:
                self._reason = "expired"
        return self._reason

    def stop(self, reason: str) -> None:
        """Ask the run to stop; the first reason stays, but a lost lease overrules any other."""
        if not self._reason or reason == "fenced":
            self._reason = reason

    def acknowledge(self, asked_at: float) -> None:
        """The store confirmed a beat that was sent at ``asked_at`` (``time.monotonic()``)."""
        self._acknowledged = asked_at

    def confirm(self, ledger: Ledger) -> None:
        """Before a folder is touched or an agent started: where only the store can tell, after a freeze, ask it.

        Raises:
            Fenced: another worker has the turn, and maybe the session has gone on. What it wrote must stay.
        """
        if self.lapsed:
            self.acknowledge(ledger.confirm(self.claim))


class LeaseKeeper:
    """Beats for every lease this process holds."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._period = settings.lease_seconds / _BEATS_PER_LEASE
        store = connect(settings, answer_seconds=max(0.2, min(1.0, self._period)), resends=0)
        self._ledger = Ledger(settings, worker, store)
        self._leases: dict[str, Lease] = {}
        self._all_stop = ""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Leases still held run out by themselves."""
        self._closing.set()

    def stop_all(self, reason: str) -> None:
        """Ask every run of this process to stop, also one that was claimed and is about to begin."""
        with self._lock:
            self._all_stop = reason
            for lease in self._leases.values():
                lease.stop(reason)

    @contextmanager
    def hold(self, claim: Claim) -> Iterator[Lease]:
        """Keep a claim's lease while the block runs."""
        lease = Lease(claim, self._settings.lease_seconds, claim.taken_at + claim.seconds_left)
        with self._lock:
            self._leases[claim.token] = lease
            if self._all_stop:
                lease.stop(self._all_stop)
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.pop(claim.token, None)

    def _held(self) -> list[Lease]:
        with self._lock:
            return list(self._leases.values())

    def _keep(self) -> None:
        while not self._closing.wait(self._period):
            for lease in self._held():
                self._beat(lease)

    def _beat(self, lease: Lease) -> None:
        asked_at = time.monotonic()
        try:
            stop = self._ledger.beat(lease.claim)
        except Fenced:
            log.warning("lease.fenced", turn_id=lease.claim.turn.turn_id)
            lease.stop("fenced")
        except RedisError as error:
            log.warning("lease.beat_failed", turn_id=lease.claim.turn.turn_id, error=type(error).__name__)
        except Exception:
            # This thread keeps every lease of the process: one turn's trouble must not end it.
            log.exception("lease.beat_crashed", turn_id=lease.claim.turn.turn_id)
        else:
            lease.acknowledge(asked_at)
            if stop:
                lease.stop(stop)

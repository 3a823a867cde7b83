"""Leases: a worker owns a turn only while the store confirms the lease.

One thread per process renews all leases in one command, on its own connection, so that neither a hanging store nor a
busy main loop delays the renewal. The lease also expires by the local clock: the agent is suspended before another
worker may take the turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from redis.exceptions import RedisError

from api_client.contract.settings import Settings
from api_client.store.connecting import open_blocking_store
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.lease_renewal import LeaseRenewal
from api_client.turns.record.ledger import Ledger
from worker.turns.loops.rounds import SLOW_SHARE, Rounds

log = structlog.get_logger()

#: Seconds without a turn of the main loop before its leases are given up.
LOOP_SECONDS = 10.0
#: Renewals per lease, and the share of the lease reserved for stopping the agent.
_BEATS_PER_LEASE = 4
_MARGIN = 0.25
#: Longest wait for a renewal's answer, as a share of the lease; leaves time for a second renewal.
_ANSWER_SHARE = 1 / 3
#: Delay before retrying an unanswered renewal, as a share of the renewal period.
_AGAIN_SHARE = 0.1


class Lease:
    """A worker's temporary right to work on a turn. Runners poll ``reason``; no agent outlives ``lease_ends``."""

    def __init__(self, claim: LeaseClaim, seconds: float, deadline: float) -> None:
        self.claim = claim
        #: True if this worker also carried out the preceding task.
        self.continued = False
        #: Data of the session-files plug-in about the files that it restored or saved.
        self.stored: Any = None
        #: True while a command that may give the turn back is in flight; only its reply tells whether the lease was
        #: lost.
        self.giving_back = False
        self.deadline = deadline
        self._held_seconds = seconds * (1 - _MARGIN)
        self._reason = ""
        self._acknowledged = claim.taken_at

    @property
    def lease_ends(self) -> float:
        """Return the ``time.monotonic()`` value until which the lease certainly lasts."""
        return self._acknowledged + self._held_seconds

    @property
    def lapsed(self) -> bool:
        """Return True if the lease has expired by the local clock."""
        return time.monotonic() > self._acknowledged + self._held_seconds

    @property
    def in_doubt(self) -> bool:
        """Return True if the lease has expired by the local clock, but the store has not named a new owner."""
        return not self._reason and self.lapsed

    @property
    def reason(self) -> str:
        """Return why the run must stop, or "" while the run may continue.

        The reasons are cancelled, expired (past its deadline), shutdown, and fenced (another worker may own the turn).
        """
        if not self._reason:
            now = time.monotonic()
            if now > self._acknowledged + self._held_seconds:
                # The reason is final: the agent is being stopped, and a late renewal must not revive the run.
                self._reason = "fenced"
            elif now > self.deadline:
                self._reason = "expired"
        return self._reason

    def request_stop(self, reason: str) -> None:
        """Ask the run to stop for the given reason. Only "fenced" replaces an earlier reason."""
        if not self._reason or reason == "fenced":
            self._reason = reason

    def record_renewal(self, asked_at: float) -> None:
        """Record that the store confirmed a renewal, which was sent at ``asked_at`` (``time.monotonic()``)."""
        self._acknowledged = asked_at

    def continue_with(self, claim: LeaseClaim) -> None:
        """Keep this lease for the turn's next task. ``claim`` is the store's reply, which has renewed the lease."""
        self.claim = claim
        self.continued, self.giving_back = True, False
        self.deadline = claim.taken_at + claim.seconds_left
        self.record_renewal(claim.taken_at)

    async def confirm_holder(self, ledger: Ledger) -> None:
        """Ask the store whether this worker still owns the turn, if the lease has expired locally.

        Raises ``LeaseLost``.

        Call this method before touching a folder or starting an agent.
        """
        if self.lapsed:
            self.record_renewal(await ledger.confirm_lease(self.claim))


class LeaseKeeper:
    """Renews the leases of this process's turns from a background thread. One Redis command renews all of them."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._period = settings.lease_seconds / _BEATS_PER_LEASE
        store = open_blocking_store(settings, answer_seconds=settings.lease_seconds * _ANSWER_SHARE, resends=0)
        self._beats = LeaseRenewal(settings, store)
        self._rounds = Rounds(settings.lease_seconds * SLOW_SHARE)
        self._leases: dict[str, Lease] = {}
        self._all_stop = ""
        self._turned_at: float | None = None
        self._stuck = False
        self._answered = True
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop renewing leases, so that they expire."""
        self._closing.set()

    def note_loop_turn(self) -> None:
        """Record that the event loop is alive. After the first call, leases are renewed only while calls continue."""
        self._turned_at = time.monotonic()

    @property
    def worst_round(self) -> float:
        """Return how many seconds the slowest lease renewal of the last minute took, or 0 without leases."""
        return self._rounds.find_worst(time.monotonic())

    def stop_all(self, reason: str) -> None:
        """Ask all runs of this process, current and future, to stop for the given reason."""
        with self._lock:
            self._all_stop = reason
            for lease in self._leases.values():
                lease.request_stop(reason)

    @contextmanager
    def hold_lease(self, claim: LeaseClaim) -> Iterator[Lease]:
        """Create a lease for a claimed turn, and renew the lease while the ``with`` block runs."""
        lease = Lease(claim, self._settings.lease_seconds, claim.taken_at + claim.seconds_left)
        with self._lock:
            self._leases[claim.token] = lease
            if self._all_stop:
                lease.request_stop(self._all_stop)
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.pop(claim.token, None)
            claim.outbox.clear()

    def _held_leases(self) -> list[Lease]:
        with self._lock:
            return list(self._leases.values())

    def _keep_renewing(self) -> None:
        with suppress(RedisError):  # the first round tries again
            self._beats.load_script()
        planned = time.monotonic() + self._period
        while not self._closing.wait(max(0.0, planned - time.monotonic())):
            late = time.monotonic() - planned
            # The whole process was frozen, so the loop is not to blame.
            if late > self._period and self._turned_at is not None:
                self._turned_at += late
            if not (held := self._held_leases()) or not self._is_loop_alive():
                self._answered = True  # no renewal was due
            else:
                try:
                    self._renew_leases(held, planned)
                except Exception:
                    # This thread renews every lease of the process and must survive errors of a single round.
                    log.exception("lease.round_crashed")
            planned = max(planned + self._period * (1 if self._answered else _AGAIN_SHARE), time.monotonic())

    def _is_loop_alive(self) -> bool:
        stuck = self._turned_at is not None and time.monotonic() - self._turned_at > LOOP_SECONDS
        if stuck and not self._stuck:
            log.error("lease.loop_stuck", worker=self._worker, seconds=LOOP_SECONDS, turns=len(self._leases))
        self._stuck = stuck
        return not stuck

    def _renew_leases(self, held: list[Lease], planned: float) -> None:
        asked_at, answered = time.monotonic(), True
        try:
            said = self._beats.renew_leases([lease.claim for lease in held])
        except RedisError as error:
            said, answered = {}, False
            if self._answered:
                log.warning("lease.beat_failed", turns=len(held), error=type(error).__name__)
        self._answered = answered
        for lease in held:
            found, stop = said.get(lease.claim.token, ("", ""))
            if found == "fenced" and not lease.giving_back:
                log.warning("lease.fenced", turn_id=lease.claim.turn.turn_id)
                lease.request_stop("fenced")
            elif found == "damaged":
                log.error("lease.record_damaged", turn_id=lease.claim.turn.turn_id)
            elif found == "held":
                lease.record_renewal(asked_at)
                if stop:
                    lease.request_stop(stop)
        now = time.monotonic()
        if self._rounds.record_round(now, now - planned):
            hint = "leases are lost above half a lease: fewer HELIX_RUN_SLOTS, a nearer store, or a less busy machine"
            log.warning("lease.round_slow", seconds=round(now - planned, 2), turns=len(held), hint=hint)

"""Leases: a turn is ours only as long as the store confirms it.

One thread per process keeps all leases in one command, over its own connection with short time-outs and no resends: a
store that hangs cannot hold it up beyond the leases, and a busy main loop fences nobody. It fences itself by its own
clock: without an acknowledged beat in time the run must stop before the lease ends, because after that another worker
may take the turn. An agent is only suspended then, by its guard, until the store has said whose turn it is: a machine
that was frozen goes on with what nobody took. A main loop that has stopped turning keeps no lease either
(``LOOP_SECONDS``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
from redis.exceptions import RedisError

from api_client.contract.settings import Settings
from api_client.snapshots import Snapshot
from api_client.store.connecting import connect
from api_client.turns.record.beats import Beats
from api_client.turns.record.claim import Claim
from api_client.turns.record.ledger import Ledger
from worker.turns.loops.rounds import SLOW_SHARE, Rounds

log = structlog.get_logger()

#: A main loop that has not turned for this long is stuck, in seconds: its turns are left to other workers.
LOOP_SECONDS = 10.0
#: Beats per lease, and the part of the lease that is kept back for stopping the agent.
_BEATS_PER_LEASE = 4
_MARGIN = 0.25
#: The part of a lease that a round may wait for its answer. A round is slow long before (``SLOW_SHARE``): a link that
#: gets slower is seen before it costs a lease. Behind a round without an answer another one fits.
_ANSWER_SHARE = 1 / 3
#: A store that did not answer is asked again after this part of a period: it may be back long before the next round.
_AGAIN_SHARE = 0.1


class Lease:
    """One held turn. A runner polls it as its ``Stop``: ``reason`` to end the agent, ``lease_ends`` to outlive none."""

    def __init__(self, claim: Claim, seconds: float, deadline: float) -> None:
        self.claim = claim
        #: The holder carried out the link before this one too, and saw it end.
        self.continued = False
        #: The session's files as this holder brought or last kept them; None before. See ``session_files``.
        self.snapshot: Snapshot | None = None
        #: The command that may give the turn back is on its way: its answer alone says whether the turn was lost.
        self.giving_back = False
        self.deadline = deadline
        self._held_seconds = seconds * (1 - _MARGIN)
        self._reason = ""
        self._acknowledged = claim.taken_at

    @property
    def lease_ends(self) -> float:
        """Until when, by ``time.monotonic()``, the turn is surely ours."""
        return self._acknowledged + self._held_seconds

    @property
    def lapsed(self) -> bool:
        """True when only the store knows the turn's holder."""
        return time.monotonic() > self._acknowledged + self._held_seconds

    @property
    def in_doubt(self) -> bool:
        """True when the clock says that the lease is over, and the store has not said whose turn it is."""
        return not self._reason and self.lapsed

    @property
    def reason(self) -> str:
        """Return why the run must stop: cancelled, expired, shutdown or fenced; empty while it may go on."""
        if not self._reason:
            now = time.monotonic()
            if now > self._acknowledged + self._held_seconds:
                # Kept: its reader stops the agent, and a beat that succeeds later does not bring it back.
                self._reason = "fenced"
            elif now > self.deadline:
                self._reason = "expired"
        return self._reason

    def stop(self, reason: str) -> None:
        """Ask the run to stop; the first reason stays, but a lost lease overrules any other."""
        if not self._reason or reason == "fenced":
            self._reason = reason

    def acknowledge(self, asked_at: float) -> None:
        """The store confirmed a beat that was sent at ``asked_at`` (``time.monotonic()``)."""
        self._acknowledged = asked_at

    def go_on(self, claim: Claim) -> None:
        """The holder has the next link too, by the same token; its lease began again when that was asked for."""
        self.claim = claim
        self.continued, self.giving_back = True, False
        self.deadline = claim.taken_at + claim.seconds_left
        self.acknowledge(claim.taken_at)

    async def confirm(self, ledger: Ledger) -> None:
        """Before a folder is touched or an agent started: after a freeze only the store knows the holder: ask it.

        Raises:
            Fenced: another worker has the turn, and maybe the session has gone on. What it wrote must stay.
        """
        if self.lapsed:
            self.acknowledge(await ledger.confirm(self.claim))


class LeaseKeeper:
    """Renews every lease this process holds, all in one round."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._period = settings.lease_seconds / _BEATS_PER_LEASE
        store = connect(settings, answer_seconds=settings.lease_seconds * _ANSWER_SHARE, resends=0)
        self._beats = Beats(settings, store)
        self._rounds = Rounds(settings.lease_seconds * SLOW_SHARE)
        self._leases: dict[str, Lease] = {}
        self._all_stop = ""
        self._turned_at: float | None = None
        self._stuck = False
        self._answered = True
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Leases still held run out by themselves."""
        self._closing.set()

    def turned(self) -> None:
        """The process's main loop turned. Once called, it must be called every second: else no lease is kept.

        A process that never calls it, because threads carry out its turns, has no main loop to wait for.
        """
        self._turned_at = time.monotonic()

    @property
    def worst_round(self) -> float:
        """The longest round of the last minute, in seconds; 0 when no lease was held."""
        return self._rounds.worst(time.monotonic())

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
            claim.outbox.clear()

    def _held(self) -> list[Lease]:
        with self._lock:
            return list(self._leases.values())

    def _keep(self) -> None:
        with suppress(RedisError):  # the first round tries again
            self._beats.open()
        planned = time.monotonic() + self._period
        while not self._closing.wait(max(0.0, planned - time.monotonic())):
            late = time.monotonic() - planned
            if late > self._period and self._turned_at is not None:  # this process was frozen, and its loop with it
                self._turned_at += late
            if not (held := self._held()) or not self._loop_turns():
                self._answered = True  # nobody was asked
            else:
                try:
                    self._renew(held, planned)
                except Exception:
                    # This thread keeps every lease of the process: one round's trouble must not end it.
                    log.exception("lease.round_crashed")
            planned = max(planned + self._period * (1 if self._answered else _AGAIN_SHARE), time.monotonic())

    def _loop_turns(self) -> bool:
        """Return whether the main loop turns; one that is stuck cannot work for its turns, nor stop their agents."""
        stuck = self._turned_at is not None and time.monotonic() - self._turned_at > LOOP_SECONDS
        if stuck and not self._stuck:
            log.error("lease.loop_stuck", worker=self._worker, seconds=LOOP_SECONDS, turns=len(self._leases))
        self._stuck = stuck
        return not stuck

    def _renew(self, held: list[Lease], planned: float) -> None:
        """One round: every lease in one command. ``planned`` is when it was to begin."""
        asked_at, answered = time.monotonic(), True
        try:
            said = self._beats.renew([lease.claim for lease in held])
        except RedisError as error:
            said, answered = {}, False
            if self._answered:
                log.warning("lease.beat_failed", turns=len(held), error=type(error).__name__)
        self._answered = answered
        for lease in held:
            found, stop = said.get(lease.claim.token, ("", ""))
            if found == "fenced" and not lease.giving_back:
                log.warning("lease.fenced", turn_id=lease.claim.turn.turn_id)
                lease.stop("fenced")
            elif found == "damaged":
                log.error("lease.record_damaged", turn_id=lease.claim.turn.turn_id)
            elif found == "held":
                lease.acknowledge(asked_at)
                if stop:
                    lease.stop(stop)
        now = time.monotonic()
        if self._rounds.add(now, now - planned):
            hint = "leases are lost above half a lease: fewer HELIX_RUN_SLOTS, a nearer store, or a less busy machine"
            log.warning("lease.round_slow", seconds=round(now - planned, 2), turns=len(held), hint=hint)

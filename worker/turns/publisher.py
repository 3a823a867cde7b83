"""An accepted answer becomes its session's: sealed in the store first, then put where people and the next run look.

The seal comes first: a cancel that comes later is too late, and a worker that takes the turn over publishes and
commits the same. So all here may happen twice, and may stop at any line.

Where the agent worked in the session's folder, the writer is fenced there too, and so takes its place in the folder
before it asks the store (``publish``, in a thread). Else the store is asked in the loop, and a thread only writes
(``accept``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from api_client.contract.attempt import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import arrive, reach
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from worker.files import session, workspace
from worker.files.session_fence import Place, fenced_writes, place
from worker.turns import folders
from worker.turns.leases.host import Host
from worker.turns.leases.lease import Lease
from worker.turns.phases import phase_folders
from worker.turns.record.async_ledger import AsyncLedger
from worker.turns.record.ledger import Ledger
from worker.turns.threads import Threads
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.moves import Move

log = structlog.get_logger()

#: A worker that wakes up late may end the right to write of the one that has the turn: so often that is tried again.
_TRIES = 3


class Publisher:
    """Publishes what was accepted. One per worker process. ``blocking`` is the ledger for what runs in threads."""

    def __init__(self, settings: Settings, ledger: AsyncLedger, blocking: Ledger, threads: Threads, host: Host) -> None:
        self._settings = settings
        self._ledger = ledger
        self._blocking = blocking
        self._threads = threads
        self._host = host

    def finish(self, lease: Lease) -> Move:
        """Publish what an earlier holder accepted and did not commit: some of it may lie there, all, or nothing.

        Raises:
            Fenced: as ``publish``.
        """
        accepted = Accepted.from_json(lease.claim.accepted, lease.claim.facts)
        try:
            return self.publish(lease, accepted)
        except SettingsError as error:  # its folder went after the seal: the record keeps the answer
            log.error("answer.not_published", error=str(error))
            return accepted.move

    def accept_with_files(
        self, lease: Lease, move: Move, record: AttemptRecord, files: Mapping[str, str] | None = None
    ) -> Move:
        """As ``publish``, with the files that belong to the answer and that this attempt did not write itself."""
        turn = lease.claim.turn
        mended = dict[str, str]()
        if move.outcome and move.outcome.success:
            mended = folders.written_before(self._settings, turn, record, files or {})
        accepted = Accepted(move=move, delivery=folders.delivery_of(turn, record), mended=mended)
        return self.publish(lease, accepted)

    async def accept(
        self, lease: Lease, accepted: Accepted, files: Mapping[str, str], ended: Iterable[int] = ()
    ) -> Move:
        """As ``publish``, with the store asked in the loop: where no agent of this turn writes in the folder any more.

        Args:
            lease: the turn's.
            accepted: what is sealed.
            files: all files that belong to the answer, by name.
            ended: attempts whose recordings nobody needs once it is sealed.

        Raises:
            Fenced: as ``publish``. OSError: this machine is sick: another one can judge and publish it.
            JudgingPaused: no answer may be accepted now.
        """
        await arrive("answer.accepted")
        if await self._ledger.seal(lease.claim, self._sealed(lease, accepted)):
            await self._threads.files(self._write, lease, accepted, files, ended)
        return accepted.move

    def _write(self, lease: Lease, accepted: Accepted, files: Mapping[str, str], ended: Iterable[int]) -> None:
        """Put a sealed answer into the place that is there for it; where there is none, all of ``publish``."""
        try:
            with place(folders.folder_of(self._settings, lease.claim.turn), lease.claim.token) as here:
                if here is not None:
                    lease.confirm(self._blocking)
                    self._put(here, lease.claim.turn, accepted, files)
            if here is None:
                self.publish(lease, accepted)
        except FileNotFoundError:  # as in ``publish``
            self.publish(lease, accepted)
        except OSError as error:
            if self._host.look():
                raise
            log.error("answer.not_published", error=str(error))  # as in ``publish``
        reach("answer.published")
        folders.forget_runs(self._settings, lease.claim.turn, ended)

    def publish(self, lease: Lease, accepted: Accepted) -> Move:
        """Publish a success before its commit; other moves just go on. Returns the move to commit.

        A turn that was cancelled before the seal is not published; the commit ends it as it must.

        Raises:
            Fenced: another worker has the turn, and maybe the session has gone on. What it wrote stays.
            SettingsError: a phase's folder is not there; nothing was sealed, unless it was before.
            OSError: this machine is sick, and nothing was sealed: another one can publish it.
        """
        turn, move, sealed = lease.claim.turn, accepted.move, bool(lease.claim.accepted)
        if move.outcome is None or not move.outcome.success:
            return move
        reach("answer.accepted")
        for _ in range(_TRIES):
            try:
                with fenced_writes(folders.folder_of(self._settings, turn), lease.claim.token) as holder:
                    if not self._seal(lease, accepted):
                        return move
                    sealed = True
                    holder.take()
                    if turn.request.phase is None:
                        own = workspace.written_files(holder.path / "attempts" / accepted.delivery)
                        self._put(holder, turn, accepted, {**own, **accepted.mended})
                    else:
                        phase_folders.publish_output(holder, turn, accepted.delivery)
            except FileNotFoundError as error:
                # A later holder ended our right to write; or one that is late itself did: then the turn is still ours.
                log.warning("answer.publishing_again", error=str(error))
            except OSError as error:
                if self._host.look() and not sealed:
                    raise
                # The record keeps the answer; a full disk must not cost its user an accepted one.
                log.error("answer.not_published", error=str(error))
                return move
            else:
                reach("answer.published")
                return move
        log.error("answer.not_published", error="something in the session's folder is missing again and again")
        return move

    def _seal(self, lease: Lease, accepted: Accepted) -> bool:
        lease.confirm(self._blocking)
        return self._blocking.seal(lease.claim, self._sealed(lease, accepted))

    @staticmethod
    def _sealed(lease: Lease, accepted: Accepted) -> str:
        return accepted.to_json(lease.claim.facts(accepted.move.attempt))

    def _put(self, holder: Place, turn: Turn, accepted: Accepted, files: Mapping[str, str]) -> None:
        """Put the answer and its files where people and the session's next run find them. Raises as ``publish``.

        A run that is stored with its verdict is not in ``turn`` yet: the next turn goes on in the move's agent session.
        """
        answer, changed = accepted.move.answer, accepted.move.fields.values
        session.accept(holder, turn, answer, agent_session=changed.get("agent_session", turn.agent_session))
        workspace.publish(
            holder,
            answer.response,
            attempt_id=accepted.delivery,
            files=files,
            durable=self._settings.durability == "power",
        )

"""An accepted answer becomes its session's: sealed in the store first, then put where people and the next run look.

The seal comes first: a cancel that comes later is too late, and whoever takes the turn over after a crash publishes and
commits the same. So all here may happen twice, and may stop at any line.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import reach
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from worker.files import session, workspace
from worker.files.session_fence import Holding, holding
from worker.turns import folders
from worker.turns.leases.host import Host
from worker.turns.leases.lease import Lease
from worker.turns.phases import phase_folders
from worker.turns.record.ledger import Ledger
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.moves import Move
from worker.turns.transitions.texts import whole

log = structlog.get_logger()

#: A worker that wakes up late may end the right to write of the one that has the turn: so often that is tried again.
_TRIES = 3


class Publisher:
    """Publishes what was accepted. One per worker process, used by many threads."""

    def __init__(self, settings: Settings, ledger: Ledger, host: Host) -> None:
        self._settings = settings
        self._ledger = ledger
        self._host = host

    def finish(self, lease: Lease) -> Move:
        """Publish what an earlier holder accepted and did not commit: some of it may lie there, all, or nothing.

        Raises:
            Fenced: as ``publish``.
        """
        accepted = Accepted.from_json(lease.claim.accepted)
        accepted = replace(accepted, move=whole(accepted.move, lease.claim.facts(accepted.move.attempt)))
        try:
            return self.publish(lease, accepted)
        except SettingsError as error:  # its folder went after the seal: the record keeps the answer
            log.error("answer.not_published", error=str(error))
            return accepted.move

    def publish(self, lease: Lease, accepted: Accepted) -> Move:
        """Publish a success before the commit that tells of it; other moves just go on. Returns the move to commit.

        A turn that was called off before the seal is not published; the commit ends it as it must.

        Raises:
            Fenced: another worker has the turn, and maybe the session has gone on. What it wrote stays.
            SettingsError: a phase's folder is not there; nothing was sealed, unless it was before.
            OSError: this machine is sick, and nothing was sealed: another one can publish it.
        """
        move, sealed = accepted.move, bool(lease.claim.accepted)
        if move.outcome is None or not move.outcome.success:
            return move
        reach("answer.accepted")
        for _ in range(_TRIES):
            try:
                with holding(folders.folder_of(self._settings, lease.claim.turn)) as holder:
                    if not self._seal(lease, accepted):
                        return move
                    sealed = True
                    self._put(holder, lease.claim.turn, accepted)
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
        lease.confirm(self._ledger)
        return self._ledger.seal(lease.claim, accepted.to_json(lease.claim.facts(accepted.move.attempt)))

    def _put(self, holder: Holding, turn: Turn, accepted: Accepted) -> None:
        """Put the answer and its files where people and the session's next run find them. Raises as ``publish``."""
        answer = accepted.move.answer
        holder.take()
        if turn.request.phase is not None:
            phase_folders.publish_output(holder, turn, accepted.delivery)
            return
        files = workspace.written_files(holder.path / "attempts" / accepted.delivery)
        session.accept(holder, turn, answer)
        workspace.publish(
            holder,
            answer.response,
            attempt_id=accepted.delivery,
            files={**files, **accepted.mended},
            durable=self._settings.durability == "power",
        )

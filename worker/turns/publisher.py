"""An accepted answer becomes its session's: sealed in the store first, then put where people and the next run look.

The seal comes first: a cancel that comes later is too late, and a worker that takes the turn over publishes and
commits the same. So all here may happen twice, and may stop at any line.

Files are written in the place that the turn holds in the session's folder. Where it holds none any more, a new one
is made before the store is asked again: a worker that held the session since clears that one away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import arrive, reach
from api_client.contract.work import find_work
from api_client.snapshots.objects import FilesLost, FilesUnavailable
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.moves import Move
from worker.files.session_fence import FencedPlace, fenced_writes, place
from worker.files.snapshots import SessionTooLarge
from worker.turns.folders import delivery_of, folder_of, forget_runs, written_before
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts
from worker.turns.work import find_work_of

log = structlog.get_logger()

#: A worker that wakes up late may end the right to write of the one that has the turn: so often that is tried again.
_TRIES = 3


async def finish(parts: EngineParts, lease: Lease) -> Move:
    """Publish what an earlier holder accepted and did not commit: some of it may lie there, all, or nothing.

    Raises:
        Fenced: as ``publish``.
    """
    accepted = AcceptedAnswer.from_json(lease.claim.accepted, lease.claim.facts)
    try:
        await parts.files.restore(lease)
        return await publish(parts, lease, accepted)
    except (SettingsError, FilesLost, FilesUnavailable, SessionTooLarge) as error:  # the record keeps the answer
        log.error("answer.not_published", error=str(error))
        return accepted.move


def accept_with_files(
    parts: EngineParts, lease: Lease, move: Move, record: AttemptRecord, files: Mapping[str, str] | None = None
) -> Move:
    """As ``publish``, from a thread, with the files of the answer that this attempt did not write itself."""
    turn = lease.claim.turn
    mended = dict[str, str]()
    if move.outcome and move.outcome.success:
        mended = written_before(parts.settings, turn, record, files or {})
    accepted = AcceptedAnswer(move=move, delivery=delivery_of(turn, record), mended=mended)
    return parts.threads.asked(publish(parts, lease, accepted))


async def publish(
    parts: EngineParts,
    lease: Lease,
    accepted: AcceptedAnswer,
    files: Mapping[str, str] | None = None,
    ended: Iterable[int] = (),
) -> Move:
    """Seal and publish a success before its commit; other moves just go on. Returns the move to commit.

    A turn that was cancelled before the seal is not published; the commit ends it as it must. ``files`` are all that
    belong to the answer, by name; None: those of the delivery, and repaired ones. ``ended``: attempts whose recordings
    nobody needs once it is sealed.

    Raises:
        Fenced: another worker has the turn, and maybe the session has gone on. What it wrote stays.
        SettingsError: its kind's folder is not there; nothing was sealed, unless it was before.
        FilesUnavailable, SessionTooLarge: as ``SessionFiles.save``.
        OSError: this machine is sick: another one can publish it. JudgingPaused: no answer may be accepted now.
    """
    turn, move = lease.claim.turn, accepted.move
    if move.outcome is None or not move.outcome.success:
        return move
    await arrive("answer.accepted")
    if not find_work(turn.request).in_session:
        await parts.threads.files(folder_of, parts.settings, turn)
    kept = await parts.files.save(lease)
    if await parts.ledger.seal(lease.claim, accepted.to_json(lease.claim.facts(move.attempt)), kept):
        await parts.threads.files(_write, parts, lease, accepted, files, ended)
    return move


def _write(
    parts: EngineParts, lease: Lease, accepted: AcceptedAnswer, files: Mapping[str, str] | None, ended: Iterable[int]
) -> None:
    """Write a sealed answer. Raises as ``publish``."""
    turn = lease.claim.turn
    try:
        for _ in range(_TRIES):
            try:
                _write_once(parts, lease, accepted, files)
                break
            except FileNotFoundError as error:
                # A later holder ended our right to write; or one that is late itself did: then it is still ours.
                log.warning("answer.publishing_again", error=str(error))
        else:
            log.error("answer.not_published", error="something in the folder is missing again and again")
    except OSError as error:
        if parts.host.look() and not lease.claim.accepted:
            raise
        # The record keeps the answer; a full disk must not cost its user an accepted one.
        log.error("answer.not_published", error=str(error))
    reach("answer.published")
    forget_runs(parts.settings, turn, ended)


def _write_once(parts: EngineParts, lease: Lease, accepted: AcceptedAnswer, files: Mapping[str, str] | None) -> None:
    turn, token = lease.claim.turn, lease.claim.token
    session_folder = folder_of(parts.settings, turn)
    with place(session_folder, token) as here:
        if here is not None and (find_work(turn.request).in_session or isinstance(here, FencedPlace)):
            if lease.lapsed:
                parts.threads.asked(lease.confirm(parts.ledger))
            find_work_of(turn).publish(parts.settings, here, turn, accepted, files)
            return
    with fenced_writes(session_folder, token) as holder:
        lease.acknowledge(parts.threads.asked(parts.ledger.confirm(lease.claim)))
        holder.take()
        find_work_of(turn).publish(parts.settings, holder, turn, accepted, files)

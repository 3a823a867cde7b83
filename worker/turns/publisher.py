"""Publishes accepted answers: seals the answer in the store, then writes the session's files.

After the seal a cancellation is too late, and a worker that takes the turn over publishes the same answer. Every step
may therefore happen twice, or be interrupted anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import pass_failpoint, pass_failpoint_async
from api_client.contract.session_files import SessionFilesError
from api_client.contract.work import find_work
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.transition import Transition
from worker.files.session_fence import FencedSessionFolder, open_fenced, open_for_publishing
from worker.turns.engine_parts import EngineParts
from worker.turns.folders import find_foreign_files, forget_runs, last_delivery_name, locate_turn_folder
from worker.turns.leases.lease import Lease
from worker.turns.work import find_turn_work

log = structlog.get_logger()

#: Attempts to write, because a late worker may remove the current holder's fence.
_TRIES = 3


async def publish_sealed(parts: EngineParts, lease: Lease) -> Transition:
    """Finish publishing an answer that another worker accepted. Return the transition to store."""
    accepted = AcceptedAnswer.from_json(lease.claim.accepted, lease.claim.known_facts)
    try:
        await parts.files.restore_files(lease)
        return await publish_answer(parts, lease, accepted)
    except (SettingsError, SessionFilesError) as error:  # the record keeps the answer
        log.error("answer.not_published", error=str(error))
        return accepted.transition


def accept_with_files(
    parts: EngineParts,
    lease: Lease,
    transition: Transition,
    record: AttemptRecord,
    files: Mapping[str, str] | None = None,
) -> Transition:
    """Publish an accepted answer with files from earlier attempts, and return the transition to store. Blocks."""
    turn = lease.claim.turn
    mended = dict[str, str]()
    if transition.outcome and transition.outcome.success:
        mended = find_foreign_files(parts.settings, turn, record, files or {})
    accepted = AcceptedAnswer(transition=transition, delivery=last_delivery_name(turn, record), mended=mended)
    return parts.threads.run_in_loop(publish_answer(parts, lease, accepted))


async def publish_answer(
    parts: EngineParts,
    lease: Lease,
    accepted: AcceptedAnswer,
    files: Mapping[str, str] | None = None,
    ended: Iterable[int] = (),
) -> Transition:
    """Make an accepted answer final in the store, then write its files. Return the transition to commit.

    Unsuccessful transitions are returned unchanged. A turn cancelled before the seal is not published.

    Args:
        files: all files of the answer by name; None for the delivery's own and repaired files.
        ended: attempts whose recordings are obsolete after the seal.

    Raises:
        LeaseLost: another worker has the turn.
        SettingsError: the kind of work's folder is missing; nothing was sealed now.
        SessionFilesError: the session's files cannot be saved.
        OSError: this machine is sick, and another machine can publish.
        ValidationHeldBack: answers are not accepted at the moment.
    """
    turn, transition = lease.claim.turn, accepted.transition
    if transition.outcome is None or not transition.outcome.success:
        return transition
    await pass_failpoint_async("answer.accepted")
    if not find_work(turn.request).in_session:
        await parts.threads.do_file_work(locate_turn_folder, parts.settings, turn)
    kept = await parts.files.save_files(lease)
    sealed = accepted.to_json(lease.claim.known_facts(transition.attempt))
    if await parts.ledger.seal_answer(lease.claim, sealed, kept, transition.service):
        await parts.threads.do_file_work(_write_files, parts, lease, accepted, files, ended)
    return transition


def _write_files(
    parts: EngineParts, lease: Lease, accepted: AcceptedAnswer, files: Mapping[str, str] | None, ended: Iterable[int]
) -> None:
    turn = lease.claim.turn
    try:
        for _ in range(_TRIES):
            try:
                _write_once(parts, lease, accepted, files)
                break
            except FileNotFoundError as error:
                # Another holder removed our fence; if that holder was late, the turn is still ours.
                log.warning("answer.publishing_again", error=str(error))
        else:
            log.error("answer.not_published", error="something in the folder is missing again and again")
    except OSError as error:
        if parts.host.probe_now() and not lease.claim.accepted:
            raise
        # A full disk must not cost the user an accepted answer, which the record keeps.
        log.error("answer.not_published", error=str(error))
    pass_failpoint("answer.published")
    forget_runs(parts.settings, turn, ended)


def _write_once(parts: EngineParts, lease: Lease, accepted: AcceptedAnswer, files: Mapping[str, str] | None) -> None:
    turn, token = lease.claim.turn, lease.claim.token
    session_folder = locate_turn_folder(parts.settings, turn)
    with open_for_publishing(session_folder, token) as here:
        if here is not None and (find_work(turn.request).in_session or isinstance(here, FencedSessionFolder)):
            if lease.lapsed:
                parts.threads.run_in_loop(lease.confirm_holder(parts.ledger))
            find_turn_work(turn).publish(parts.settings, here, turn, accepted, files)
            return
    with open_fenced(session_folder, token) as holder:
        lease.record_renewal(parts.threads.run_in_loop(parts.ledger.confirm_lease(lease.claim)))
        holder.revoke_earlier_holders()
        find_turn_work(turn).publish(parts.settings, holder, turn, accepted, files)

"""The place of a turn's files: in the folder of its session, or in the folder of its phase."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from api_client.contract.failpoints import arrive, reach
from api_client.contract.issues import SettingsError, ValidationIssue
from api_client.contract.keys import delivery_name, session_directory
from api_client.contract.record import AttemptRecord
from api_client.contract.settings import Settings
from api_client.contract.tasks import JUDGED_BY
from api_client.contract.turn import Turn
from api_client.snapshots import FilesLost, FilesUnavailable
from api_client.turns.record.changes import Claim
from api_client.turns.record.encoding import Accepted, Move, judged, policy_of
from worker.enforcement.attempt import best, kept_files, latest_set
from worker.enforcement.policy import weighed
from worker.files import recording, session, workspace
from worker.files.safe_io import opened
from worker.files.snapshots import SessionTooLarge
from worker.files.workspace import (
    RESPONSE,
    FencedPlace,
    Place,
    Recent,
    Written,
    delivery_directory,
    fenced_writes,
    has_answer,
    place,
    take_answer_back,
    written,
)
from worker.runners.base import AnyRunner, BuildRunner, needs_folder
from worker.turns import phase_turns
from worker.turns.leases.lease import Lease
from worker.turns.parts import EngineParts
from worker.turns.phase_turns import phase_directory

_NOTHING = Written()
#: In a delivery's folder, what belongs to its run and not to its agent's work.
_OF_A_RUN = frozenset({"marks"})


def folder_of(settings: Settings, turn: Turn) -> Path:
    """The folder the turn works in; several turns of a session, one after the other, share it.

    Raises:
        SettingsError: the turn is of a phase, and this worker has no such project.
    """
    if turn.request.phase is not None:
        return phase_directory(settings.root, turn)
    return session_directory(settings.sessions_dir, turn.request.session_id)


def works_in_files(settings: Settings, turn: Turn, runners: BuildRunner) -> bool:
    """Return whether agents of this turn may have written files; where only another worker knows, they may."""
    runner = _runner(settings, turn, runners)
    return runner is None or needs_folder(runner)


def may_be_recorded(settings: Settings, turn: Turn, runners: BuildRunner) -> bool:
    """Return whether runs of this turn may have been recorded; where only another worker knows, they may."""
    runner = _runner(settings, turn, runners)
    return runner is None or is_recorded(runner)


def is_recorded(runner: AnyRunner) -> bool:
    """True if runs of a runner are recorded: where agents work in a folder, and a finished run can be adopted."""
    return needs_folder(runner) and hasattr(runner, "adopt")  # a tenth of what the protocol's isinstance takes


def _runner(settings: Settings, turn: Turn, runners: BuildRunner) -> AnyRunner | None:
    """The runner of the turn's agents; None where only another worker knows, or where there may be several."""
    model = settings.models.get(turn.request.model)
    if model is None or turn.request.phase is not None or turn.stage:
        return None
    try:
        return runners(model)[0]
    except SettingsError:
        return None


def begin(
    settings: Settings,
    turn: Turn,
    attempt: int,
    history: Sequence[AttemptRecord],
    confirm: Callable[[], None],
    *,
    needed: bool,
    template: str,
    token: str = "",
    tools: bool = True,
) -> Path:
    """Make ready what a delivery's agent works in; returns the delivery's own folder.

    Without ``needed`` the folder is not made, and nobody looks for it: the turn's token alone says who may run it. Only
    the mark that the session's last message is answered goes, as before each attempt (ADR-036, phase 4).

    Args:
        settings: where sessions and projects lie.
        turn: the turn that is about to run.
        attempt: the number of the attempt.
        history: the attempts before it.
        confirm: asks the store, after a freeze, whether the turn is still ours; raises if it is not.
        needed: the agent works in the folder.
        template: as for ``session.prepare``.
        token: as for ``workspace.fenced_writes``: the claim's, under which the answer is accepted too.
        tools: as for ``session.prepare``.

    Raises:
        DeliveryTaken: this delivery was started before. OSError: the folder cannot be written. SettingsError: as
            ``folder_of``. What ``confirm`` raises.
    """
    workdir = folder_of(settings, turn)
    if not needed:
        if has_answer(workdir):
            _take_answer_back(workdir, confirm)
        return own_folder(settings, turn, attempt)
    with fenced_writes(workdir, token, stays=True) as holder:
        confirm()
        holder.take()
        directory = delivery_directory(holder, turn.turn_id, attempt, turn.delivery)
        if turn.request.phase is None:
            session.prepare(holder, turn, settings.root, template, tools=tools)
        else:
            phase_turns.begin(holder, directory, turn, history)
    return directory


def _take_answer_back(workdir: Path, confirm: Callable[[], None]) -> None:
    """As the answer is put there: fenced where agents ever worked in files, else by the turn's token alone."""
    with place(workdir) as here:
        if here is not None:
            confirm()
            take_answer_back(here)
            return
    with fenced_writes(workdir) as holder:
        confirm()
        holder.take()
        take_answer_back(holder)


def own_folder(settings: Settings, turn: Turn, attempt: int) -> Path:
    """The folder of the delivery that runs now, made or not. Raises as ``folder_of``, ``ValueError``: no turn's id."""
    return Path(f"{folder_of(settings, turn)}/attempts/{delivery_name(turn.turn_id, attempt, turn.delivery)}")


def delivery_beside(directory: Path, turn: Turn, attempt: int, delivery: int) -> Path:
    """The folder of another delivery of the same turn."""
    return directory.with_name(delivery_name(turn.turn_id, attempt, delivery))


def take_over(settings: Settings, turn: Turn, attempt: int, asked_in: int) -> None:
    """Move what deliveries since ``asked_in`` left in their folders into this one's: it goes on from their question.

    Each file or folder is moved whole; a worker that dies in between leaves the rest to the next one.

    Raises:
        OSError: it cannot be moved. SettingsError: as ``folder_of``.
    """
    attempts = folder_of(settings, turn) / "attempts"
    with opened(attempts) as above, opened(delivery_name(turn.turn_id, attempt, turn.delivery), above) as own:
        for number in range(asked_in, turn.delivery):
            name = delivery_name(turn.turn_id, attempt, number)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(name, above) as left:
                for entry in os.listdir(left):  # noqa: PTH208 - a descriptor
                    if entry not in _OF_A_RUN:
                        _move(entry, left, own)


def _move(name: str, left: int, own: int) -> None:
    """Move a file or folder; what this folder has of that name, such as its empty ``output``, goes."""
    try:
        os.rename(name, name, src_dir_fd=left, dst_dir_fd=own)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}:
            raise
        log.warning("files.not_taken_over", name=name, error=str(error))


def unforgotten(settings: Settings, claim: Claim, runners: BuildRunner, *, went_on: bool) -> range:
    """The attempts whose runs may be recorded still, and need not be once the claimed link's move is stored.

    That is the link's own, and those before it where another holder may have died before it removed their recordings.
    ``went_on``: this holder carried out the link before too.
    """
    attempt, runs = claim.link.attempt, claim.link.task in JUDGED_BY
    if (went_on and not runs) or not may_be_recorded(settings, claim.turn, runners):
        return range(0)
    return range(attempt if went_on else 1, attempt + 1)


def forget_runs(settings: Settings, turn: Turn, ended: Iterable[int]) -> None:
    """Remove what is recorded of the runs of attempts whose results are in the store."""
    try:
        folder = folder_of(settings, turn)
    except SettingsError:
        return  # no agent of it was started here
    for attempt in ended:
        for delivery in range(attempt, turn.delivery + 1):  # each attempt before it had one at least
            recording.forget(f"{folder}/attempts/{delivery_name(turn.turn_id, attempt, delivery)}")


def delivery_of(turn: Turn, record: AttemptRecord) -> str:
    """The name of the folder an attempt's last delivery wrote in."""
    return delivery_name(turn.turn_id, record.number, record.last_delivery)


def delivery_folder(settings: Settings, turn: Turn, record: AttemptRecord) -> Path:
    """That folder. Raises as ``folder_of``."""
    return folder_of(settings, turn) / "attempts" / delivery_of(turn, record)


def written_before(settings: Settings, turn: Turn, record: AttemptRecord, files: Mapping[str, str]) -> dict[str, str]:
    """Which of an answer's ``files`` its attempt did not write itself. Raises as ``folder_of``."""
    return _not_of(_delivered(settings, turn, record), files) if files else {}


def _not_of(own: Written, files: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if own.files.get(name) != text}


#: Deliveries that were over and had written nothing: nobody looks there again.
_wrote_nothing = Recent[str, bool](most=256)


def _delivered(settings: Settings, turn: Turn, record: AttemptRecord) -> Written:
    """Read the files of the attempt's agent, which has ended. Raises as ``folder_of``, ``workspace.written``."""
    name = delivery_of(turn, record)
    if _wrote_nothing.get(name):
        return _NOTHING
    found = written(f"{folder_of(settings, turn)}/attempts/{name}")
    if found == _NOTHING:
        _wrote_nothing.put(name, True)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFiles:
    """The files of an answer.

    Attributes:
        files: by name. not_own: those of them that its own attempt did not write so.
        refused: why one that its own attempt wrote is not taken, as in ``Written``.
        lost: what a new version of one of them lost.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    not_own: dict[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[ValidationIssue] = ()


def kept(settings: Settings, turn: Turn, records: Sequence[AttemptRecord]) -> AnswerFiles:
    """The files that belong to the last of these attempts' answer.

    Each delivery writes in its own folder; an agent that is asked for a part alone does not write its files again.
    ``response.md`` is the answer itself, and is valid for its own attempt only.

    Raises:
        SettingsError: as ``folder_of``. OSError: as ``workspace.written``.
    """
    delivered = [_delivered(settings, turn, record) for record in records]
    own = delivered[-1]
    if not any(each.files for each in delivered):
        return AnswerFiles(refused=own.refused)
    files: dict[str, str] = {}
    lost: list[ValidationIssue] = []
    policy = policy_of(turn)
    attempts = weighed(judged(records), policy)
    for at, (record, each) in enumerate(zip(records, delivered, strict=True)):
        if attempts[at].fresh:
            files = {}
        if not attempts[at].complete and not record.goes_on and record is not records[-1]:
            continue
        before = best(latest_set(attempts[:at]))
        answer, errors = (before.answer, before.errors) if before else ("", ())
        files.pop(RESPONSE, None)
        if errors:
            files, lost = kept_files(files, errors, answer, each.files, turn.request.locale)
        else:
            files, lost = {**files, **each.files}, []
    return AnswerFiles(files=files, not_own=_not_of(own, files), refused=own.refused, lost=lost)


# An accepted answer becomes its session's: sealed in the store first, then put where people and the next run look.
#
# The seal comes first: a cancel that comes later is too late, and a worker that takes the turn over publishes and
# commits the same. So all here may happen twice, and may stop at any line.
#
# Files are written in the place that the turn holds in the session's folder. Where it holds none any more, a new one
# is made before the store is asked again: a worker that held the session since clears that one away.

log = structlog.get_logger()

#: A worker that wakes up late may end the right to write of the one that has the turn: so often that is tried again.
_TRIES = 3


async def finish(parts: EngineParts, lease: Lease) -> Move:
    """Publish what an earlier holder accepted and did not commit: some of it may lie there, all, or nothing.

    Raises:
        Fenced: as ``publish``.
    """
    accepted = Accepted.from_json(lease.claim.accepted, lease.claim.facts)
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
    accepted = Accepted(move=move, delivery=delivery_of(turn, record), mended=mended)
    return parts.threads.asked(publish(parts, lease, accepted))


async def publish(
    parts: EngineParts,
    lease: Lease,
    accepted: Accepted,
    files: Mapping[str, str] | None = None,
    ended: Iterable[int] = (),
) -> Move:
    """Seal and publish a success before its commit; other moves just go on. Returns the move to commit.

    A turn that was cancelled before the seal is not published; the commit ends it as it must. ``files`` are all that
    belong to the answer, by name; None: those of the delivery, and repaired ones. ``ended``: attempts whose recordings
    nobody needs once it is sealed.

    Raises:
        Fenced: another worker has the turn, and maybe the session has gone on. What it wrote stays.
        SettingsError: a phase's folder is not there; nothing was sealed, unless it was before.
        FilesUnavailable, SessionTooLarge: as ``SessionFiles.save``.
        OSError: this machine is sick: another one can publish it. JudgingPaused: no answer may be accepted now.
    """
    turn, move = lease.claim.turn, accepted.move
    if move.outcome is None or not move.outcome.success:
        return move
    await arrive("answer.accepted")
    if turn.request.phase is not None:
        await parts.threads.files(folder_of, parts.settings, turn)
    kept = await parts.files.save(lease)
    if await parts.ledger.seal(lease.claim, accepted.to_json(lease.claim.facts(move.attempt)), kept):
        await parts.threads.files(_write, parts, lease, accepted, files, ended)
    return move


def _write(
    parts: EngineParts, lease: Lease, accepted: Accepted, files: Mapping[str, str] | None, ended: Iterable[int]
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


def _write_once(parts: EngineParts, lease: Lease, accepted: Accepted, files: Mapping[str, str] | None) -> None:
    turn, token = lease.claim.turn, lease.claim.token
    session_folder = folder_of(parts.settings, turn)
    with place(session_folder, token) as here:
        if here is not None and (turn.request.phase is None or isinstance(here, FencedPlace)):
            if lease.lapsed:
                parts.threads.asked(lease.confirm(parts.ledger))
            _put(parts, here, turn, accepted, files)
            return
    with fenced_writes(session_folder, token) as holder:
        lease.acknowledge(parts.threads.asked(parts.ledger.confirm(lease.claim)))
        holder.take()
        _put(parts, holder, turn, accepted, files)


def _put(parts: EngineParts, holder: Place, turn: Turn, accepted: Accepted, files: Mapping[str, str] | None) -> None:
    """Put the answer and its files where people and the session's next run find them. Raises as ``publish``.

    A run that is stored with its verdict is not in ``turn`` yet: the next turn goes on in the move's agent session.
    """
    if isinstance(holder, FencedPlace) and turn.request.phase is not None:
        phase_turns.publish_output(holder, turn, accepted.delivery)
        return
    if files is None:
        own = workspace.written_files(holder.path / "attempts" / accepted.delivery)
        files = {**own, **accepted.mended}
    if accepted.mended:
        workspace.keep_repaired(holder, accepted.delivery, accepted.mended)
    answer, changed = accepted.move.answer, accepted.move.fields.values
    session.accept(holder, turn, answer, agent_session=changed.get("agent_session", turn.agent_session))
    workspace.publish(
        holder,
        answer.response,
        attempt_id=accepted.delivery,
        files=files,
        durable=parts.settings.durability == "power",
    )

"""The place of a turn's files: in the folder of its session, or where its kind of work keeps them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import SettingsError
from api_client.contract.issue import ValidationIssue
from api_client.contract.session_paths import delivery_name
from api_client.contract.settings import Settings
from api_client.contract.tasks import runs_agent
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from api_client.turns.record.claim import Claim
from api_client.turns.record.moves import judged
from api_client.turns.record.turn_policy import policy_of
from worker.enforcement.attempt import best, latest_set
from worker.enforcement.kept_files import kept_files
from worker.enforcement.policy import weighed
from worker.files import recording
from worker.files.recent import Recent
from worker.files.safe_io import opened
from worker.files.session_fence import fenced_writes, place
from worker.files.workspace import RESPONSE, WrittenFiles, delivery_directory, has_answer, take_answer_back, written
from worker.runners.base import AnyRunner, BuildRunner, needs_folder
from worker.turns.work import SessionSetUp, find_work_of

log = structlog.get_logger()


_NOTHING = WrittenFiles()
#: In a delivery's folder, what belongs to its run and not to its agent's work.
_OF_A_RUN = frozenset({"marks"})


def folder_of(settings: Settings, turn: Turn) -> Path:
    """The folder the turn works in; several turns of a session, one after the other, share it.

    Raises:
        SettingsError: this worker does not have the folder that the kind of work needs.
    """
    return find_work_of(turn).locate_folder(settings, turn)


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
    if model is None or not find_work(turn.request).in_session or turn.stage:
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
    the mark that the session's last message is answered goes, as before each attempt (ADR-036, Phase 4).

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
        find_work_of(turn).prepare(holder, directory, turn, history, SessionSetUp(settings.root, template, tools))
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


def unforgotten(settings: Settings, claim: Claim, runners: BuildRunner, *, continued: bool) -> range:
    """The attempts whose runs may be recorded still, and need not be once the claimed link's move is stored.

    That is the link's own, and those before it where another holder may have died before it removed their recordings.
    ``continued``: this holder carried out the link before too.
    """
    attempt, runs = claim.link.attempt, runs_agent(claim.link.task)
    if (continued and not runs) or not may_be_recorded(settings, claim.turn, runners):
        return range(0)
    return range(attempt if continued else 1, attempt + 1)


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


def _not_of(own: WrittenFiles, files: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if own.files.get(name) != text}


#: Deliveries that were over and had written nothing: nobody looks there again.
_wrote_nothing = Recent[str, bool](most=256)


def _delivered(settings: Settings, turn: Turn, record: AttemptRecord) -> WrittenFiles:
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
        refused: why one that its own attempt wrote is not taken, as in ``WrittenFiles``.
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

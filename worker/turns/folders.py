"""Locations of a turn's files, in the folder of its session or in a folder of its kind of work."""

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
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.transition import to_policy_attempts
from api_client.turns.record.turn_policy import find_turn_policy
from worker.enforcement.answer_files import merge_files
from worker.enforcement.attempt import find_best_attempt, latest_attempts
from worker.enforcement.policy import weigh_attempts
from worker.files import recording
from worker.files.folder_trees import move_entry
from worker.files.recent_entries import RecentEntries
from worker.files.safe_io import open_folder
from worker.files.session_fence import open_fenced, open_for_publishing
from worker.files.workspace import (
    RESPONSE,
    WrittenFiles,
    create_delivery_folder,
    has_answer,
    read_answer_files,
    withdraw_answer,
)
from worker.runners.base import AnyRunner, BuildRunner, needs_folder
from worker.turns.work import SessionSetUp, find_turn_work

log = structlog.get_logger()


_NOTHING = WrittenFiles()
#: Entries of a delivery's folder that belong to the run rather than to the agent's work.
_OF_A_RUN = frozenset({"marks"})


def locate_turn_folder(settings: Settings, turn: Turn) -> Path:
    """Return the folder that holds the files of a turn. All turns of a chat session share one folder.

    Raises ``SettingsError`` if this worker lacks the folder that the kind of work needs.
    """
    return find_turn_work(turn).locate_folder(settings, turn)


def may_write_files(settings: Settings, turn: Turn, runners: BuildRunner) -> bool:
    """Return True if the agents of a turn may have written files, or if this worker does not know."""
    runner = _find_runner(settings, turn, runners)
    return runner is None or needs_folder(runner)


def may_be_recorded(settings: Settings, turn: Turn, runners: BuildRunner) -> bool:
    """Return True if agent runs of a turn may be recorded on disk, or if this worker does not know."""
    runner = _find_runner(settings, turn, runners)
    return runner is None or is_recorded(runner)


def is_recorded(runner: AnyRunner) -> bool:
    """Return True if a runner records its runs on disk, where another worker can adopt a finished run."""
    return needs_folder(runner) and hasattr(runner, "adopt")  # ten times faster than isinstance with the protocol


def _find_runner(settings: Settings, turn: Turn, runners: BuildRunner) -> AnyRunner | None:
    """Return the runner of a turn's agents, or None if the runner is unknown here or may change between attempts."""
    model = settings.models.get(turn.request.model)
    if model is None or not find_work(turn.request).in_session or turn.stage:
        return None
    try:
        return runners(model)[0]
    except SettingsError:
        return None


def prepare_delivery(
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
    """Prepare the folders for an agent run, and return the folder that belongs to this run alone.

    Without ``needed`` no folder is created; only the file that marks the last message as answered is removed.
    ``confirm`` raises if another worker holds the turn.

    Raises:
        DeliveryTakenError: this delivery was started before.
        OSError: the folder cannot be written.
        SettingsError: this worker lacks the folder of the kind of work.
    """
    workdir = locate_turn_folder(settings, turn)
    if not needed:
        if has_answer(workdir):
            _take_answer_back(workdir, confirm)
        return locate_own_folder(settings, turn, attempt)
    places = ", ".join(str(settings.root / name) for name in settings.skills)
    rules = SessionSetUp(settings.root, template, tools, places)
    with open_fenced(workdir, token, keep=True) as holder:
        confirm()
        holder.revoke_earlier_holders()
        directory = create_delivery_folder(holder, turn.turn_id, attempt, turn.delivery)
        find_turn_work(turn).prepare(holder, directory, turn, history, rules)
    return directory


def _take_answer_back(workdir: Path, confirm: Callable[[], None]) -> None:
    with open_for_publishing(workdir) as here:
        if here is not None:
            confirm()
            withdraw_answer(here)
            return
    with open_fenced(workdir) as holder:
        confirm()
        holder.revoke_earlier_holders()
        withdraw_answer(holder)


def locate_own_folder(settings: Settings, turn: Turn, attempt: int) -> Path:
    """Return the folder of the current delivery of an attempt, even if the folder does not exist yet."""
    return Path(f"{locate_turn_folder(settings, turn)}/attempts/{delivery_name(turn.turn_id, attempt, turn.delivery)}")


def locate_other_delivery(directory: Path, turn: Turn, attempt: int, delivery: int) -> Path:
    """Return the folder of another delivery of the same turn, given any delivery's folder as ``directory``."""
    return directory.with_name(delivery_name(turn.turn_id, attempt, delivery))


def take_over_files(settings: Settings, turn: Turn, attempt: int, asked_in: int) -> None:
    """Move the files written since the agent's question from earlier folders into the current delivery's folder.

    ``asked_in`` is the delivery that asked the question. If the worker dies in between, the next worker moves the rest.
    """
    attempts = locate_turn_folder(settings, turn) / "attempts"
    with open_folder(attempts) as above, open_folder(delivery_name(turn.turn_id, attempt, turn.delivery), above) as own:
        for number in range(asked_in, turn.delivery):
            name = delivery_name(turn.turn_id, attempt, number)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), open_folder(name, above) as left:
                for entry in os.listdir(left):  # noqa: PTH208 - a descriptor
                    if entry not in _OF_A_RUN:
                        _take_over_entry(entry, left, own)


def _take_over_entry(name: str, left: int, own: int) -> None:
    try:
        move_entry(name, left, own)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}:
            raise
        log.warning("files.not_taken_over", name=name, error=str(error))


def find_recorded_attempts(settings: Settings, claim: LeaseClaim, runners: BuildRunner, *, continued: bool) -> range:
    """Return the numbers of the attempts whose recordings can be deleted once the task's result is stored.

    ``continued``: the same worker carried out the preceding task, so only the task's own attempt counts.
    """
    attempt, runs = claim.chain_task.attempt, runs_agent(claim.chain_task.task)
    if (continued and not runs) or not may_be_recorded(settings, claim.turn, runners):
        return range(0)
    return range(attempt if continued else 1, attempt + 1)


def forget_runs(settings: Settings, turn: Turn, ended: Iterable[int]) -> None:
    """Delete the recorded runs of the given attempts, because their results are stored."""
    try:
        folder = locate_turn_folder(settings, turn)
    except SettingsError:
        return  # no agent of the turn was started on this worker
    for attempt in ended:
        for delivery in range(attempt, turn.delivery + 1):  # each earlier attempt had at least one delivery
            recording.delete_recording(f"{folder}/attempts/{delivery_name(turn.turn_id, attempt, delivery)}")


def last_delivery_name(turn: Turn, record: AttemptRecord) -> str:
    """Return the name of the folder that the attempt's last delivery used."""
    return delivery_name(turn.turn_id, record.number, record.last_delivery)


def locate_last_delivery(settings: Settings, turn: Turn, record: AttemptRecord) -> Path:
    """Return the folder that the attempt's last delivery used. Raises ``SettingsError``."""
    return locate_turn_folder(settings, turn) / "attempts" / last_delivery_name(turn, record)


def find_foreign_files(
    settings: Settings, turn: Turn, record: AttemptRecord, files: Mapping[str, str]
) -> dict[str, str]:
    """Return the files of an answer that other attempts wrote or changed. Raises ``SettingsError``."""
    return _find_differing(_read_delivered(settings, turn, record), files) if files else {}


def _find_differing(own: WrittenFiles, files: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if own.files.get(name) != text}


#: Finished deliveries without files.
_wrote_nothing = RecentEntries[str, bool](most=256)


def _read_delivered(settings: Settings, turn: Turn, record: AttemptRecord) -> WrittenFiles:
    name = last_delivery_name(turn, record)
    if _wrote_nothing.get(name):
        return _NOTHING
    found = read_answer_files(f"{locate_turn_folder(settings, turn)}/attempts/{name}")
    if found == _NOTHING:
        _wrote_nothing.put(name, True)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFiles:
    """Holds the files that belong to an answer, and the problems found in them.

    Attributes:
        not_own: the files that the answer's own attempt did not write in this form.
        refused: the reasons why files of the own attempt are refused, by name.
        lost: issues about content that a new version of a file lost.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    not_own: dict[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[ValidationIssue] = ()


def collect_answer_files(settings: Settings, turn: Turn, records: Sequence[AttemptRecord]) -> AnswerFiles:
    """Collect the files that belong to the last attempt's answer, including files from earlier attempts.

    An agent asked for a part only does not repeat its other files. ``response.md`` belongs to its own attempt only.
    Raises ``SettingsError`` or ``OSError``.
    """
    delivered = [_read_delivered(settings, turn, record) for record in records]
    own = delivered[-1]
    if not any(each.files for each in delivered):
        return AnswerFiles(refused=own.refused)
    files: dict[str, str] = {}
    lost: list[ValidationIssue] = []
    policy = find_turn_policy(turn)
    attempts = weigh_attempts(to_policy_attempts(records), policy)
    for at, (record, each) in enumerate(zip(records, delivered, strict=True)):
        if attempts[at].fresh:
            files = {}
        if not attempts[at].complete and not record.goes_on and record is not records[-1]:
            continue
        before = find_best_attempt(latest_attempts(attempts[:at]))
        answer, errors = (before.answer, before.errors) if before else ("", ())
        files.pop(RESPONSE, None)
        if errors:
            files, lost = merge_files(files, errors, answer, each.files, turn.request.locale)
        else:
            files, lost = {**files, **each.files}, []
    return AnswerFiles(files=files, not_own=_find_differing(own, files), refused=own.refused, lost=lost)

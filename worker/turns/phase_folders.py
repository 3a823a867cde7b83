"""The folders of a phase, as far as its turn needs them (docs/WORKFLOW-SYSTEM.md).

    <id>/output/                          the verified output
    <id>/feedback.md                      what was wrong, while an agent works on it
    <id>/attempts/<turn>-<n>-<delivery>/  what one delivery wrote, in its own output/

``api_client/contract/phases.py`` says where the folder <id> lies: each owner has its own. An attempt
begins with a copy of what the last complete attempt left. The first one, and the first of another model, begin with
the verified output there was before the turn: nothing of a failed attempt is in it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import structlog

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.completion import Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.phase import Phase
from api_client.contract.phase_place import PHASES, input_file, input_problem, phases_folder
from api_client.contract.session_paths import delivery_name
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from worker.files.session_fence import FencedPlace
from worker.verification import FeedbackChannel, Fence, phase_prompt
from worker.verification.gates.output_tree import TooLarge, copy_files, scan

log = structlog.get_logger()

OUTPUT, STATUS = "output", "status.json"


def phase_of(turn: Turn) -> Phase:
    """The phase of a phase turn; it was checked when the turn was stored.

    Raises:
        PhaseError: it is wrong all the same, such as one of a newer version.
    """
    return Phase.stored(turn.request.phase)


def fence_of(settings: Settings, turn: Turn) -> Fence:
    """Return what the gates of a phase turn run in."""
    return Fence.of(settings, operator=turn.request.operator)


def phase_directory(root: Path, turn: Turn) -> Path:
    """The phase's folder. Raises ``SettingsError``: there is no such project below this worker's HELIX_ROOT."""
    project = (root / turn.request.directory).resolve()
    if not project.is_relative_to(root.resolve()) or not project.is_dir():
        raise SettingsError([f"no folder {turn.request.directory!r} below this worker's HELIX_ROOT"])
    return root.resolve() / phases_folder(turn.request) / phase_of(turn).id


def begin(holder: FencedPlace, directory: Path, turn: Turn, history: Sequence[AttemptRecord]) -> None:
    """Make a delivery's folder ready for its agent: the files it goes on from, and the feedback it must read.

    Raises:
        OSError: it cannot be written, or what it goes on from is beyond all limits.
    """
    # The attempt whose files this one goes on from; none: the verified output there was before.
    complete = [
        record
        for record in history
        if record.number > turn.fresh_from and record.completion.get("verdict") == Verdict.COMPLETE.value
    ]
    base = complete[-1] if complete else None
    earlier = holder.path / ("attempts" if base else "")
    source = earlier / delivery_name(turn.turn_id, base.number, base.last_delivery) if base else holder.path
    with contextlib.suppress(FileNotFoundError):
        _copy(source / OUTPUT, directory / OUTPUT)
    channel = FeedbackChannel(holder.path, locale=turn.request.locale)
    last = history[-1] if history else None
    if last and last.feedback:
        allowed = max(turn.max_attempts, last.number)
        text = channel.write(last.feedback, last.number, allowed)
        (directory / FeedbackChannel.FEEDBACK_FILE).write_text(text, encoding="utf-8")
    else:
        channel.clear()
    _note(holder, turn, "running")


def asked(turn: Turn, root: Path, history: Sequence[AttemptRecord]) -> str:
    """Return what the agent is asked: the phase, the feedback, or both when this agent has not heard of the phase yet.

    Raises:
        SettingsError: an input file is missing, or no plain file.
    """
    phase = phase_of(turn)
    feedback = history[-1].feedback if history else ""
    if turn.agent_session and feedback:
        return feedback
    prompt = phase_prompt(phase, inputs=input_files(turn, root), locale=turn.request.locale)
    return f"{prompt}\n{feedback}".strip() if feedback else prompt


def input_files(turn: Turn, root: Path) -> dict[str, str]:
    """The phase's input files as they are written, each with its place.

    Raises:
        SettingsError: one is missing, or no plain file.
    """
    phase, root = phase_of(turn), root.resolve()
    places = {path: input_file(root, turn.request, path) for path in phase.input_files}
    for path, place in places.items():
        problem = input_problem(root, turn.request, path)
        if problem or not place.is_file():
            problem = problem or f"{path!r} is missing in {turn.request.directory!r}"
            raise SettingsError([f"input file of phase {phase.id!r}: {problem}"])
    return {path: str(place) for path, place in places.items()}


def own_inputs(turn: Turn, root: Path) -> tuple[Path, ...]:
    """The input files of a phase that earlier ones of the same owner wrote: their folder may be closed to others."""
    paths = [PurePosixPath(path) for path in phase_of(turn).input_files]
    return tuple(input_file(root.resolve(), turn.request, str(path)) for path in paths if path.parts[:1] == (PHASES,))


def publish_output(holder: FencedPlace, turn: Turn, delivery: str) -> None:
    """Make a delivery's output the phase's verified output. Doing it again changes nothing.

    Raises:
        OSError: it cannot be written; FileNotFoundError also when there was a later holder.
    """
    source = holder.path / "attempts" / delivery / OUTPUT
    holder.put_folder(OUTPUT, lambda fresh: _copy(source, fresh))
    FeedbackChannel(holder.path, locale=turn.request.locale).clear()
    _note(holder, turn, "passed")


def _copy(source: Path, target: Path) -> None:
    try:
        copy_files(scan(source), target)
    except TooLarge as error:
        raise OSError(f"the output is too large: {error}") from error


def put_feedback_away(workdir: Path, turn: Turn) -> None:
    """Keep the last feedback in ``logs/`` when nobody is to answer it any more. Not vital: the record has it."""
    try:
        FeedbackChannel(workdir, locale=turn.request.locale).archive()
    except OSError as error:
        log.warning("feedback.not_archived", reason=str(error))


def _note(holder: FencedPlace, turn: Turn, status: str) -> None:
    """Which turn worked here last, for people and for ``turns phase list``."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    noted = {"phase": phase_of(turn).id, "turn_id": turn.turn_id, "status": status, "updated_at": now}
    holder.replace(STATUS, (json.dumps(noted) + "\n").encode(), holder.session, durable=False)

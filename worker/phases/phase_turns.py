"""The turns of phases: their folders (docs/WORKFLOW-SYSTEM.md) and the verification of their output."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import structlog

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.completion import Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.events import Body
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.issue import ValidationIssue
from api_client.contract.phase_folders import PHASES, explain_bad_input, locate_input_file, phases_directory
from api_client.contract.phase_work import AFTER, PhaseWork
from api_client.contract.session_paths import delivery_name
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnState
from api_client.contract.usage import Usage
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.transition import Transition
from worker.enforcement.policy import demote_issues
from worker.files.session_fence import FencedSessionFolder, SessionFolder
from worker.files.workspace import read_accepted_files
from worker.phases.after_verification import cancel_unreached_phase, transition_after_verification
from worker.phases.phase_verification import AttemptVerification, build_gate_sandbox, read_phase
from worker.turns.engine_parts import EngineParts
from worker.turns.folders import locate_last_delivery
from worker.turns.leases.lease import Lease
from worker.turns.publisher import accept_with_files
from worker.turns.transitions.after_validation import fail_unvalidated
from worker.turns.transitions.usage import charge_validation
from worker.turns.validation import build_case
from worker.turns.validation_pool import ValidatorsUnavailable
from worker.turns.work import Files, History, SessionSetUp, TurnWork
from worker.verification import FeedbackChannel, build_phase_prompt
from worker.verification.gates.output_tree import OutputTooLarge, copy_files, scan_tree

log = structlog.get_logger()

_OUTPUT, _STATUS = "output", "status.json"


class PhaseTurns(TurnWork):
    """Runs turns that carry out a phase: the agent works in the phase's folder, and verified output is published.

    An attempt starts with a copy of the last complete attempt, or of the earlier verified output.
    """

    def locate_folder(self, settings: Settings, turn: Turn) -> Path:
        """Return the path of the folder in which the phase's agent works. Raises ``SettingsError``."""
        directory, root = phases_directory(turn.request), settings.root.resolve()
        project = (root / directory).resolve()
        if not project.is_relative_to(root) or not project.is_dir():
            raise SettingsError([f"no folder {directory!r} below this worker's HELIX_ROOT"])
        return root / PhaseWork().locate_folder(turn.request)

    async def start(self, parts: EngineParts, lease: Lease) -> Transition | None:
        """Return a transition that cancels the turn if the previous phase did not pass, or else None."""
        turn = lease.claim.turn
        if not (before := str(turn.request.work_data.get(AFTER, ""))):
            return None
        found = await parts.ledger.read_turn(before)
        if found and found.success:
            return None
        ended = found.outcome.value if found and found.outcome else "unknown"
        return cancel_unreached_phase(turn, lease.claim.chain_task, before, ended)

    def write_prompt(self, settings: Settings, turn: Turn, history: History) -> str:
        """Return the prompt for the agent: the phase's description, the feedback on its last attempt, or both.

        Raises ``SettingsError`` if an input file is not a plain file, or gates may not run programs here.
        """
        phase, root = read_phase(turn), settings.root.resolve()
        if refused := build_gate_sandbox(settings, turn).explain_phase_refusal(phase):  # before the agent costs money
            raise SettingsError([refused])
        feedback = history[-1].feedback if history else ""
        if turn.agent_session and feedback:
            return feedback
        inputs = {path: locate_input_file(root, turn.request, path) for path in phase.input_files}
        for path, place in inputs.items():
            problem = explain_bad_input(root, turn.request, path)
            if problem or not place.is_file():
                problem = problem or f"{path!r} is missing in {phases_directory(turn.request)!r}"
                raise SettingsError([f"input file of phase {phase.id!r}: {problem}"])
        prompt = build_phase_prompt(
            phase, inputs={path: str(place) for path, place in inputs.items()}, locale=turn.request.locale
        )
        return f"{prompt}\n{feedback}".strip() if feedback else prompt

    def list_inputs(self, settings: Settings, turn: Turn) -> tuple[Path, ...]:
        """Return the input files that earlier phases of the same owner wrote."""
        paths, root = map(PurePosixPath, read_phase(turn).input_files), settings.root.resolve()
        return tuple(locate_input_file(root, turn.request, str(path)) for path in paths if path.parts[:1] == (PHASES,))

    def prepare(
        self, holder: FencedSessionFolder, directory: Path, turn: Turn, history: History, rules: SessionSetUp
    ) -> None:
        """Prepare an attempt: copy its initial files, and write the feedback for the agent. Raises ``OSError``."""
        complete = [
            record
            for record in history
            if record.number > turn.fresh_from and record.completion.get("verdict") == Verdict.COMPLETE.value
        ]
        base = complete[-1] if complete else None
        earlier = holder.path / ("attempts" if base else "")
        source = earlier / delivery_name(turn.turn_id, base.number, base.last_delivery) if base else holder.path
        # An output that cannot be listed was rejected for that reason.
        with contextlib.suppress(FileNotFoundError, PermissionError, OutputTooLarge):
            copy_files(scan_tree(source / _OUTPUT), directory / _OUTPUT, skip_closed=True)
        channel = FeedbackChannel(holder.path, locale=turn.request.locale)
        last = history[-1] if history else None
        if last and last.feedback:
            text = channel.write(last.feedback, last.number, max(turn.max_attempts, last.number))
            (directory / FeedbackChannel.FEEDBACK_FILE).write_text(text, encoding="utf-8")
        else:
            channel.remove_feedback()
        _write_phase_status(holder, turn, "running")

    async def carry_out(self, parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
        """Verify the output of the phase's agent, and return the turn's next transition."""
        await parts.policies.load_policy(lease.claim.turn)
        return await parts.threads.do_run(self._verify_output, parts, lease, attempts)

    def _verify_output(self, parts: EngineParts, lease: Lease, attempts: list[AttemptRecord]) -> Transition:
        turn, chain_task, claim = lease.claim.turn, lease.claim.chain_task, lease.claim
        this = attempts[-1]
        if this.number != chain_task.attempt:
            raise ValueError(f"attempt {chain_task.attempt} of {turn.turn_id} has no record")
        output = locate_last_delivery(parts.settings, turn, this) / _OUTPUT
        last = chain_task.attempt >= turn.max_attempts

        spent = Usage()

        def validate_rules() -> tuple[ValidationIssue, ...]:
            nonlocal spent
            case = build_case(parts, turn, this.text, read_accepted_files(output.parent), ())
            attempt = parts.validation_pool.validate_answer(case)
            spent += attempt.spent
            return demote_issues(attempt.issues, case.policy, final=last)

        def append_events(events: list[Body]) -> None:
            parts.threads.run_in_loop(parts.ledger.append_events(claim, events))

        verification = AttemptVerification(parts.settings, turn, this, lease, append_events, output, validate_rules)
        try:
            result = verification.run()
        except ValidatorsUnavailable as error:
            return fail_unvalidated(chain_task, str(error))
        pass_failpoint("validation.started")
        transition = transition_after_verification(turn, chain_task, this, result, lease.reason)
        transition = charge_validation(turn, transition, spent + Usage.from_report(result.usage))
        if transition.state is TurnState.SUSPENDED:
            self.give_up(parts.settings, turn)
        return accept_with_files(parts, lease, transition, this)

    def publish(
        self, settings: Settings, holder: SessionFolder, turn: Turn, accepted: AcceptedAnswer, files: Files
    ) -> None:
        """Publish the verified output of a phase in the phase's folder.

        Raises ``OSError``; ``FileNotFoundError`` says that a later holder fenced the folder off.
        """
        if not isinstance(holder, FencedSessionFolder):
            raise TypeError("a phase is published in a fenced place")
        source = holder.path / "attempts" / accepted.delivery / _OUTPUT
        holder.replace_folder(_OUTPUT, lambda fresh: _copy_output(source, fresh))
        FeedbackChannel(holder.path, locale=turn.request.locale).remove_feedback()
        _write_phase_status(holder, turn, "passed")

    def give_up(self, settings: Settings, turn: Turn) -> None:
        """Move the last feedback of a failed phase to the folder ``logs/``. Ignore a missing folder."""
        try:
            FeedbackChannel(self.locate_folder(settings, turn), locale=turn.request.locale).archive()
        except (SettingsError, OSError) as error:  # not essential: the record has the feedback
            log.warning("feedback.not_archived", reason=str(error)[:200])


def _copy_output(source: Path, target: Path) -> None:
    try:
        copy_files(scan_tree(source), target)
    except OutputTooLarge as error:
        raise OSError(f"the output is too large: {error}") from error


def _write_phase_status(holder: FencedSessionFolder, turn: Turn, status: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    noted = {"phase": read_phase(turn).id, "turn_id": turn.turn_id, "status": status, "updated_at": now}
    holder.replace_file(_STATUS, (json.dumps(noted) + "\n").encode(), holder.session, durable=False)

"""``run_with_verification``: a phase run and verified in one process, without a queue (ADR-025).

Every run has its own folder, ``attempts/<run>-<n>/``, and begins with a copy of what the run before it left; only
a verified output becomes the phase's ``output/``. So no late writer, and no old file, can make an output look right.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from api_client.contract.declared import Findings, Invalid, Problem, resolved, table_beside
from api_client.contract.issues import HelixError, SettingsError
from api_client.contract.phases import Phase, PhaseError, checked_phases, kind_at
from api_client.contract.settings import Settings, load
from worker.agents import build_runner
from worker.enforcement.documents.frontmatter import MAX_CHARS, read_yaml
from worker.files.safe_io import made, opened, read, replace
from worker.runners.base import AgentEvent, Order, Runner, RunResult, Stop, Verdict
from worker.verification.gates.gate_program import in_thread
from worker.verification.gates.output_tree import TooLarge, copy_files, scan
from worker.verification.sub_agent import Ground, SubAgentVerifier, VerificationResult, Verifying

# feedback.md: the faults of a phase's output, for the agent that continues (ADR-025).
#
# One file in the phase's folder: there while feedback waits, gone otherwise. It is replaced as a whole, never written
# in place, and nothing here follows a link that an agent may have put there.

log = structlog.get_logger()

#: Longest feedback that is written, in characters.
MAX_MESSAGE = 200_000

_WORDS = table_beside(__file__)


class FeedbackChannel:
    """Feedback for the agent of one phase. Safe to use again after a crash: the file is there whole, or not at all."""

    FEEDBACK_FILE = "feedback.md"
    #: Where feedback goes that nobody answered any more, below the phase's folder.
    ARCHIVE = "logs"

    def __init__(self, session_dir: Path, max_attempts: int = 3, locale: str = "en") -> None:
        self.session_dir = session_dir
        self.max_attempts = max_attempts
        self.locale = "de" if locale.lower().startswith("de") else "en"

    @property
    def feedback_path(self) -> Path:
        """Return where the feedback lies."""
        return self.session_dir / self.FEEDBACK_FILE

    def write(self, message: str, attempt: int, max_attempts: int | None = None) -> str:
        """Put the feedback there, in place of what was there before; returns the text.

        Attempts count from 1; ``max_attempts`` is the channel's for None.

        Raises:
            ValueError: there is no such attempt. OSError: it cannot be written; what was there before is still there.
        """
        text = self.text(message, attempt, max_attempts)
        with opened(self.session_dir) as folder:
            replace(self.FEEDBACK_FILE, text.encode("utf-8", "replace"), folder)
        return text

    async def send(self, message: str, attempt: int, max_attempts: int | None = None) -> bool:
        """As ``write``; False, and logged, when it could not be written, so that nobody waits for an answer to it.

        Raises:
            ValueError: there is no such attempt.
        """
        try:
            self.write(message, attempt, max_attempts)
        except OSError as error:
            log.error("feedback.not_written", path=str(self.feedback_path), reason=str(error))
            return False
        return True

    def text(self, message: str, attempt: int, max_attempts: int | None = None) -> str:
        """Return what the file holds. Raises ``ValueError``: there is no such attempt."""
        last = self.max_attempts if max_attempts is None else max_attempts
        if not 1 <= attempt <= last:
            raise ValueError(f"attempt {attempt} of {last}: attempts count from 1 to their maximum")
        return str(_WORDS["feedback"][self.locale]).format(
            attempt=attempt,
            max_attempts=last,
            time=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
            message=message.strip()[:MAX_MESSAGE] or "-",
            next=_WORDS["last" if attempt == last else "again"][self.locale],
        )

    def clear(self) -> None:
        """Take the feedback away; does nothing when there is none.

        Raises:
            OSError: there is something that cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError), opened(self.session_dir) as folder:
            os.unlink(self.FEEDBACK_FILE, dir_fd=folder)

    def has_pending_feedback(self) -> bool:
        """True while there is feedback."""
        return self.read() is not None

    def read(self) -> str | None:
        """The feedback; None when there is none, or something else in its place."""
        try:
            with opened(self.session_dir) as folder:
                return read(self.FEEDBACK_FILE, folder, 8 * MAX_MESSAGE).decode("utf-8", "replace")
        except OSError:
            return None

    def archive(self, name: str = "") -> Path | None:
        """Move the feedback to ``logs/`` after the last attempt failed; None when there is none.

        ``name`` lacks its ending; empty, it is made of the time. Raises ``OSError``: it cannot be moved, and stays.
        """
        kept = f"{name or datetime.now(UTC).strftime('feedback-%Y%m%dT%H%M%S%fZ')}.md"
        try:
            with opened(self.session_dir) as folder, made(folder, self.ARCHIVE) as archive:
                os.rename(self.FEEDBACK_FILE, kept, src_dir_fd=folder, dst_dir_fd=archive)
        except FileNotFoundError:
            return None
        return self.session_dir / self.ARCHIVE / kept


# Run, verify, report the faults, run again: ADR-025's loop in one process. The engine does the same over its queue.
#
# Every way out ends with errors that say so: all runs failed, no run allowed, a verifier that crashed or gave no
# verdict.

T = TypeVar("T")


class PhaseVerificationFailed(HelixError):
    """A phase was not verified within its runs. ``errors`` says why, never empty; ``phase_id`` names the phase."""

    code = "phase_not_verified"

    def __init__(self, phase_id: str, errors: list[str], result: VerificationResult | None = None) -> None:
        self.phase_id = phase_id
        self.errors = [str(error) for error in errors] or ["no error was reported"]
        self.result = result
        super().__init__(f"Phase {phase_id} failed verification: {'; '.join(self.errors)}")


@dataclass(frozen=True, slots=True)
class PhaseRun(Generic[T]):
    """The result of one run of a phase's agent: ``value`` for the caller, or ``errors`` when it did not work."""

    value: T
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verified(Generic[T]):
    """A verified phase: what its last run gave, which run that was, and the verification."""

    value: T
    attempt: int
    result: VerificationResult


async def verify_with_retries(
    run: Callable[[int, str], Awaitable[PhaseRun[T]]],
    verify: Callable[[int], Awaitable[VerificationResult]],
    *,
    phase_id: str,
    feedback: FeedbackChannel,
    max_retries: int = 3,
) -> Verified[T]:
    """Run a phase until its output is verified, at most ``max_retries`` times.

    A stale feedback.md goes first. After a run that failed or was rejected the feedback waits in the file while the
    next run is asked with the same text; it is archived after the last failure. ``run`` gets the attempt from 1 and the
    feedback, empty at first. When the verifier itself failed, the output is verified again without another run of the
    agent, who cannot repair that; this uses up an attempt all the same.

    Raises:
        ValueError: ``max_retries`` is less than 1. PhaseVerificationFailed: no run was verified.
    """
    if max_retries < 1:
        raise ValueError(
            f"max_retries must be at least 1, not {max_retries}: a phase that never runs is never verified"
        )
    feedback.clear()
    asked, again = "", False
    done: PhaseRun[T] | None = None
    result = VerificationResult(False, errors=["the phase was never run"])
    for attempt in range(1, max_retries + 1):
        if done is None or not again:
            done = await run(attempt, asked)
        result = await _verified(done, verify, attempt)
        if result.success:
            feedback.clear()
            return Verified(done.value, attempt, result)
        if result.ground is Ground.STOPPED:
            break
        again = not done.errors and result.ground in {Ground.VERIFIER, Ground.NO_VERDICT}
        if again and attempt < max_retries:
            continue
        asked = feedback_on(result)
        if not await feedback.send(asked, attempt, max_retries):
            errors = [*result.errors, f"the feedback could not be written to {feedback.feedback_path}"]
            raise PhaseVerificationFailed(phase_id, errors, result)
    feedback.archive()
    raise PhaseVerificationFailed(phase_id, result.errors, result)


async def _verified(
    done: PhaseRun[T], verify: Callable[[int], Awaitable[VerificationResult]], attempt: int
) -> VerificationResult:
    if done.errors:
        return VerificationResult(False, errors=[f"run {attempt} failed: {error}" for error in done.errors])
    try:
        result = await verify(attempt)
    except Exception as error:
        said = f"the verifier failed: {type(error).__name__}: {error}"
        return VerificationResult(False, errors=[said], ground=Ground.VERIFIER)
    if result.success or result.errors:
        return result
    return VerificationResult(False, result.feedback, ["the verification failed without saying why"], [], result.ground)


def feedback_on(result: VerificationResult) -> str:
    """The agent's feedback on a result: its errors as a list, then what to do about them; each thing once.

    The advice of gates says every error with its place and its fix, so an error that is in the advice is left out.
    """
    advice = (result.feedback or "").strip()
    if advice in result.errors:
        advice = ""
    errors = "\n".join(f"- {error}" for error in result.errors if error not in advice)
    return f"{errors}\n\n{advice}".strip()


#: Gets the agent's text, piece by piece.
OnOutput = Callable[[str], None]

PROMPT = "Carry out the phase that CLAUDE.md describes. Write all results below output/."


async def run_with_verification(
    phase_dir: Path,
    quality_gate: dict[str, Any],
    max_retries: int | None = None,
    on_output: OnOutput | None = None,
    *,
    prompt: str = PROMPT,
    expected_files: list[str] | None = None,
    model: str = "",
    verifier: SubAgentVerifier | None = None,
    settings: Settings | None = None,
    runner: tuple[Runner, str] | None = None,
) -> RunResult:
    """Run a phase's agent until its output is verified; feedback goes to ``feedback.md`` and into the next prompt.

    Args:
        phase_dir: the phase's folder, made when missing; its CLAUDE.md is the agent's.
        quality_gate: the gate as phases.yaml writes it.
        max_retries: runs at most; the verifier's ``max_retries``, three, for None.
        on_output: gets the agent's text; called in another thread.
        prompt: what the agent is asked.
        expected_files: what must be there afterwards, relative to ``output/``.
        model: a model of ``HELIX_MODELS``; the first for an empty name.
        verifier: in place of one made of the settings.
        settings: in place of the environment's.
        runner: the agent itself and its option, in place of a model.

    Returns:
        The result of the run whose output was verified; that output is now ``phase_dir/output``.

    Raises:
        PhaseVerificationFailed: no run was verified. PhaseError: the gate or a path is wrong.
        SettingsError: there is no such model. ValueError: ``max_retries`` is less than 1.
    """
    settings = settings or load()
    model = model or next(iter(settings.models))
    runs = _Runs(phase_dir, prompt, settings.of_model(model), model, runner or _runner(model, settings), on_output)
    verifier = verifier or SubAgentVerifier(settings=settings)

    async def verify(attempt: int) -> VerificationResult:
        on = Verifying(turn_id=runs.name, attempt=attempt, delivery=attempt, model=model, locale=settings.locale)
        return await verifier.verify_phase(
            runs.latest / "output", quality_gate, expected_files, description=prompt, verifying=on
        )

    verified = await verify_with_retries(
        runs.run,
        verify,
        phase_id=phase_dir.name,
        feedback=FeedbackChannel(phase_dir, locale=settings.locale),
        max_retries=verifier.max_retries if max_retries is None else max_retries,
    )
    runs.publish()
    return verified.value


def _runner(model: str, settings: Settings) -> tuple[Runner, str]:
    if model not in settings.models:
        raise SettingsError([f"model {model!r} is not in HELIX_MODELS ({', '.join(settings.models)})"])
    return build_runner(settings.models[model])


class _Runs:
    """The runs of one phase, one after the other."""

    def __init__(
        self,
        phase_dir: Path,
        prompt: str,
        settings: Settings,
        model: str,
        runner: tuple[Runner, str],
        on_output: OnOutput | None,
    ) -> None:
        self.name = f"phase-{secrets.token_hex(8)}"
        self.latest = phase_dir
        self._phase_dir = phase_dir
        self._prompt = prompt
        self._settings = settings
        self._model, (self._runner, self._option) = model, runner
        self._on_output = on_output
        self._session = ""
        phase_dir.mkdir(parents=True, exist_ok=True)

    async def run(self, attempt: int, feedback: str) -> PhaseRun[RunResult]:
        """Run the agent once, in its own folder."""
        directory = self._phase_dir / "attempts" / f"{self.name}-{attempt}"
        (directory / "output").mkdir(parents=True)
        if attempt > 1:
            with contextlib.suppress(TooLarge, OSError):  # then it begins afresh
                copy_files(scan(self.latest / "output"), directory / "output")
        self.latest = directory
        result = await in_thread(lambda stop: self._run(attempt, feedback, directory, stop))
        self._session = result.agent_session or self._session
        completion = result.completion
        return PhaseRun(result, [] if completion.verdict is Verdict.COMPLETE else [completion.reason])

    def _run(self, attempt: int, feedback: str, directory: Path, stop: Stop) -> RunResult:
        order = Order(
            turn_id=self.name,
            session_id=self._phase_dir.name,
            attempt=attempt,
            delivery=attempt,
            prompt=feedback or self._prompt,
            messages=({"role": "user", "content": self._prompt},),
            workdir=self._phase_dir,
            directory=directory,
            agent_session=self._session,
            model=self._model,
            option=self._option,
            deadline=time.monotonic() + self._settings.deadline_seconds,
            idle_seconds=self._settings.idle_seconds,
            kill_grace_seconds=self._settings.kill_grace_seconds,
            witness=self._settings.witness,
        )
        return self._runner.run(order, self._hear, stop)

    def _hear(self, event: AgentEvent) -> None:
        if self._on_output and event.kind == "output":
            self._on_output(event.text)

    def publish(self) -> None:
        """Make the verified output the phase's; what was there before goes. The run's own folder keeps it too."""
        output, fresh = self._phase_dir / "output", self._phase_dir / f".output-{self.name}"
        old = fresh.with_name(f"{fresh.name}-old")
        copy_files(scan(self.latest / "output"), fresh)
        with contextlib.suppress(FileNotFoundError):
            output.replace(old)
        fresh.replace(output)
        shutil.rmtree(old, ignore_errors=True)


# Reading phases.yaml: foreign text, so bounded in size, depth and values. Every error names file and line.

NAME = "phases.yaml"


class PhasesFileError(PhaseError):
    """A phases.yaml that cannot be carried out: for each problem ``FILE:LINE:COLUMN: what is wrong``."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.source = source
        self.args = ("\n".join(self.described),)

    @property
    def described(self) -> tuple[str, ...]:
        """The problems as lines."""
        return tuple(f"{self.source}:{'' if each.line else ' '}{each}" for each in self.problems)


def load_phases(path: Path) -> tuple[Phase, ...]:
    """The phases of a file, or of the phases.yaml in a folder.

    Raises:
        PhasesFileError: there is no such file, it cannot be read, or something in it is wrong; also when an input file
            is a link, a pipe or a folder.
    """
    file = phases_file(path)
    try:
        content = _content(file)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        hint = f"no such file; write one, or name the folder that holds a {NAME}"
        raise PhasesFileError(str(file), [Problem((), hint)]) from None
    except OSError as error:
        why = "it is a link; name the file it leads to" if error.errno == errno.ELOOP else error.strerror
        raise PhasesFileError(str(file), [Problem((), f"cannot be read: {why}")]) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise PhasesFileError(str(file), [Problem((), "is not UTF-8", line=line, column=1)]) from error
    return parse_phases(text, str(file), folder=file.resolve().parent)


def _content(file: Path) -> bytes:
    """The beginning of a plain file: opening a pipe would wait for a writer, and a link leads to another folder."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        return source.read(4 * MAX_CHARS + 1)


def phases_file(path: Path) -> Path:
    """The file that a path means: itself, or the phases.yaml in the folder it is."""
    return path / NAME if path.is_dir() else path


def parse_phases(text: str, source: str = NAME, folder: Path | None = None) -> tuple[Phase, ...]:
    """The phases of a text.

    Args:
        text: YAML.
        source: names the text in errors.
        folder: where input files are; what lies there already must be plain files. None: that is not looked at.

    Raises:
        PhasesFileError: something is wrong; names every problem.
    """

    def checked(value: Any) -> tuple[Phase, ...]:
        data = resolved(value)
        phases, found = checked_phases(data), Findings()
        prefix = ("phases",) if isinstance(data, dict) else ()
        for number, phase in enumerate(phases):
            for place, path in enumerate(phase.input_files):
                if folder and (kind := kind_at(folder, path)) not in {"", "a plain file"}:
                    found.wrong(f"{path!r} is {kind}, not a plain file", *prefix, number, "input_files", place)
        found.end()
        return phases

    try:
        phases: tuple[Phase, ...] = read_yaml(text, checked, "is not usable YAML: holds no phases")[0]
    except Invalid as error:
        raise PhasesFileError(source, error.problems) from None
    return phases

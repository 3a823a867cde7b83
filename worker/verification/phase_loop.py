"""Runs a phase, verifies its output and retries with feedback, in one process (ADR-025)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from api_client.contract.errors import HelixError
from worker.verification.feedback_file import FeedbackChannel
from worker.verification.result import ResultGround, VerificationResult

T = TypeVar("T")


class PhaseVerificationFailed(HelixError):
    """Raised when no run of a phase passed verification. ``errors`` lists the reasons and is never empty."""

    code = "phase_not_verified"

    def __init__(self, phase_id: str, errors: list[str], result: VerificationResult | None = None) -> None:
        self.phase_id = phase_id
        self.errors = [str(error) for error in errors] or ["no error was reported"]
        self.result = result
        super().__init__(f"Phase {phase_id} failed verification: {'; '.join(self.errors)}")


@dataclass(frozen=True, slots=True)
class PhaseRun(Generic[T]):
    """The result of one agent run in a phase: a value for the caller, and errors if the run failed."""

    value: T
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifiedPhase(Generic[T]):
    """The verified result of a phase: the value that its last run returned, and the number of the last attempt."""

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
) -> VerifiedPhase[T]:
    """Run a phase and verify its output until a run is verified, at most ``max_retries`` times.

    Feedback is written to feedback.md and passed to the next run. If the verifier itself failed, the same output is
    verified again, which also counts as an attempt.

    Raises:
        ValueError: ``max_retries`` is less than 1.
        PhaseVerificationFailed: no run was verified.
    """
    if max_retries < 1:
        raise ValueError(
            f"max_retries must be at least 1, not {max_retries}: a phase that never runs is never verified"
        )
    feedback.remove_feedback()
    asked, again = "", False
    done: PhaseRun[T] | None = None
    result = VerificationResult(False, errors=["the phase was never run"])
    for attempt in range(1, max_retries + 1):
        if done is None or not again:
            done = await run(attempt, asked)
        result = await _verify_run(done, verify, attempt)
        if result.success:
            feedback.remove_feedback()
            return VerifiedPhase(done.value, attempt, result)
        if result.ground is ResultGround.STOPPED:
            break
        again = not done.errors and result.ground in {ResultGround.VERIFIER, ResultGround.NO_VERDICT}
        if again and attempt < max_retries:
            continue
        asked = compose_feedback(result)
        if not await feedback.send(asked, attempt, max_retries):
            errors = [*result.errors, f"the feedback could not be written to {feedback.feedback_path}"]
            raise PhaseVerificationFailed(phase_id, errors, result)
    feedback.archive()
    raise PhaseVerificationFailed(phase_id, result.errors, result)


async def _verify_run(
    done: PhaseRun[T], verify: Callable[[int], Awaitable[VerificationResult]], attempt: int
) -> VerificationResult:
    if done.errors:
        return VerificationResult(False, errors=[f"run {attempt} failed: {error}" for error in done.errors])
    try:
        result = await verify(attempt)
    except Exception as error:
        said = f"the verifier failed: {type(error).__name__}: {error}"
        return VerificationResult(False, errors=[said], ground=ResultGround.VERIFIER)
    if result.success or result.errors:
        return result
    return VerificationResult(False, result.feedback, ["the verification failed without saying why"], [], result.ground)


def compose_feedback(result: VerificationResult) -> str:
    """Return the feedback for an agent: a list of a verification's errors, followed by the verifier's advice."""
    advice = (result.feedback or "").strip()
    if advice in result.errors:
        advice = ""
    errors = "\n".join(f"- {error}" for error in result.errors if error not in advice)
    return f"{errors}\n\n{advice}".strip()

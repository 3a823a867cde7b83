"""The loop of run, verify and feedback: three runs, and errors that say so on every way out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from worker.verification import (
    FeedbackChannel,
    Ground,
    PhaseRun,
    PhaseVerificationFailed,
    VerificationResult,
    Verified,
    verify_with_retries,
)

GOOD = VerificationResult(True, checks_passed=["files_exist"])


def bad(*errors: str, feedback: str | None = None, ground: Ground = Ground.VERDICT) -> VerificationResult:
    return VerificationResult(False, feedback, list(errors), ground=ground)


class Phase:
    """Runs and verifications as a test wants them; records what each run was told and found."""

    def __init__(
        self, folder: Path, verdicts: Sequence[VerificationResult | Exception], failing: tuple[int, ...] = ()
    ) -> None:
        self.feedback = FeedbackChannel(folder)
        self.verdicts = verdicts
        self.failing = failing
        self.asked: list[str] = []
        self.found: list[str | None] = []
        self.verified: list[int] = []

    async def run(self, attempt: int, feedback: str) -> PhaseRun[str]:
        self.asked.append(feedback)
        self.found.append(self.feedback.read())
        number = len(self.asked)
        return PhaseRun(f"run {number}", ["the agent was killed by signal 9"] if number in self.failing else [])

    async def verify(self, attempt: int) -> VerificationResult:
        self.verified.append(attempt)
        verdict = self.verdicts[min(len(self.verified), len(self.verdicts)) - 1]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def go(self, max_retries: int = 3) -> Verified[str]:
        return await verify_with_retries(
            self.run, self.verify, phase_id="entwurf", feedback=self.feedback, max_retries=max_retries
        )

    async def fail(self, max_retries: int = 3) -> PhaseVerificationFailed:
        with pytest.raises(PhaseVerificationFailed) as raised:
            await self.go(max_retries)
        assert raised.value.phase_id == "entwurf"
        assert raised.value.errors
        assert str(raised.value).startswith("Phase entwurf failed verification: ")
        assert "; ".join(raised.value.errors) in str(raised.value)
        return raised.value


async def test_a_good_output_passes_at_once(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [GOOD])
    verified = await phase.go()
    assert (verified.value, verified.attempt, phase.asked) == ("run 1", 1, [""])
    assert not phase.feedback.has_pending_feedback()


@pytest.mark.parametrize("attempt", [2, 3])
async def test_feedback_is_told_to_the_next_run_in_the_file_and_in_words(tmp_path: Path, attempt: int) -> None:
    """A negative verdict leads to another run, and that run is told what was wrong."""
    phase = Phase(tmp_path, [bad("a.py:3: falsch", feedback="Zeile 3 ändern.")] * (attempt - 1) + [GOOD])
    verified = await phase.go()
    assert verified.attempt == attempt
    assert phase.asked[1:] == ["- a.py:3: falsch\n\nZeile 3 ändern."] * (attempt - 1)
    last = phase.found[-1] or ""
    assert f"**Attempt**: {attempt - 1}/3" in last
    assert "- a.py:3: falsch" in last
    assert not phase.feedback.has_pending_feedback()


async def test_three_rejections_fail_with_the_last_errors(tmp_path: Path) -> None:
    """ "3/3" at the end, archived, and nothing left for the next run to find."""
    phase = Phase(tmp_path, [bad("eins"), bad("zwei"), bad("drei", "vier")])
    failed = await phase.fail()
    assert failed.errors == ["drei", "vier"]
    assert len(phase.asked) == 3
    assert not phase.feedback.has_pending_feedback()
    (kept,) = (tmp_path / "logs").iterdir()
    assert "**Attempt**: 3/3" in kept.read_text()


async def test_when_every_run_fails_the_errors_are_those_of_the_runs(tmp_path: Path) -> None:
    """Errors from the run failures, and nothing was verified."""
    phase = Phase(tmp_path, [GOOD], failing=(1, 2, 3))
    failed = await phase.fail()
    assert failed.errors == ["run 3 failed: the agent was killed by signal 9"]
    assert phase.verified == []
    assert len(phase.asked) == 3


async def test_a_run_that_failed_leaves_feedback_too(tmp_path: Path) -> None:
    """The next run is told that the run before it failed."""
    phase = Phase(tmp_path, [GOOD], failing=(1,))
    await phase.go()
    assert "run 1 failed: the agent was killed" in phase.asked[1]
    assert "run 1 failed" in (phase.found[1] or "")


@pytest.mark.parametrize("count", [0, -1])
async def test_no_attempts_is_a_clear_error_and_runs_nothing(tmp_path: Path, count: int) -> None:
    """max_retries=0 says so at once."""
    phase = Phase(tmp_path, [GOOD])
    with pytest.raises(ValueError, match="max_retries must be at least 1"):
        await phase.go(count)
    assert phase.asked == []


async def test_max_retries_counts_runs(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("x")])
    await phase.fail(1)
    assert len(phase.asked) == 1


async def test_a_verifier_that_crashes_is_an_error_that_says_so_and_costs_no_run_of_the_agent(tmp_path: Path) -> None:
    """The crash is told; the agent, who cannot repair it, is not asked again."""
    phase = Phase(tmp_path, [RuntimeError("no such model")])
    failed = await phase.fail()
    assert failed.errors == ["the verifier failed: RuntimeError: no such model"]
    assert (len(phase.asked), phase.verified) == (1, [1, 2, 3])


async def test_an_answer_without_a_verdict_is_asked_for_again_not_passed(tmp_path: Path) -> None:
    """No verdict is not verified."""
    phase = Phase(tmp_path, [bad("the verifier gave no verdict", ground=Ground.NO_VERDICT), GOOD])
    verified = await phase.go()
    assert (verified.attempt, len(phase.asked)) == (2, 1)


async def test_a_failure_without_errors_still_says_so(tmp_path: Path) -> None:
    """The exception's text never fails, and is never empty."""
    assert (await Phase(tmp_path, [bad()]).fail()).errors == ["the verification failed without saying why"]
    assert "no error was reported" in str(PhaseVerificationFailed("p", []))


async def test_stale_feedback_goes_before_the_first_run(tmp_path: Path) -> None:
    """What another run left is not this run's feedback."""
    (tmp_path / "feedback.md").write_text("von gestern")
    phase = Phase(tmp_path, [GOOD])
    await phase.go()
    assert phase.found == [None]


async def test_feedback_that_cannot_be_written_ends_the_loop_and_says_so(tmp_path: Path) -> None:
    """send()'s False is not ignored."""
    phase = Phase(tmp_path, [bad("falsch")])
    phase.feedback = FeedbackChannel(tmp_path / "gone")
    failed = await phase.fail()
    assert failed.errors[0] == "falsch"
    assert "feedback could not be written" in failed.errors[1]
    assert len(phase.asked) == 1


async def test_a_verification_that_was_stopped_ends_the_loop(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("the verifier was stopped: cancelled", ground=Ground.STOPPED)])
    await phase.fail()
    assert len(phase.asked) == 1


async def test_between_two_runs_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no pause for the feedback to be noticed; it is there before the next run starts."""

    async def no_sleep(*_: object) -> None:
        raise AssertionError("the loop slept")

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    phase = Phase(tmp_path, [bad("x"), GOOD])
    await phase.go()
    assert len(phase.asked) == 2

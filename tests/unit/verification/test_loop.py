"""The loop of run, verify and feedback: three runs, and errors that say so on every way out."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from tests.unit.runners.test_folder_trees import make_deep
from worker.verification import (
    FeedbackChannel,
    PhaseRun,
    PhaseVerificationFailed,
    ResultGround,
    VerificationResult,
    VerifiedPhase,
    verify_with_retries,
)
from worker.verification.gates.scratch import PREFIX, scratch_folder, sweep_scratch

GOOD = VerificationResult(True, checks_passed=["files_exist"])


def bad(*errors: str, feedback: str | None = None, ground: ResultGround = ResultGround.VERDICT) -> VerificationResult:
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

    async def go(self, max_retries: int = 3) -> VerifiedPhase[str]:
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
    phase = Phase(tmp_path, [bad("a.py:3: falsch", feedback="Zeile 3 ändern.")] * (attempt - 1) + [GOOD])
    verified = await phase.go()
    assert verified.attempt == attempt
    assert phase.asked[1:] == ["- a.py:3: falsch\n\nZeile 3 ändern."] * (attempt - 1)
    last = phase.found[-1] or ""
    assert f"**Attempt**: {attempt - 1}/3" in last
    assert "- a.py:3: falsch" in last
    assert not phase.feedback.has_pending_feedback()


async def test_three_rejections_fail_with_the_last_errors(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("eins"), bad("zwei"), bad("drei", "vier")])
    failed = await phase.fail()
    assert failed.errors == ["drei", "vier"]
    assert len(phase.asked) == 3
    assert not phase.feedback.has_pending_feedback()
    (kept,) = (tmp_path / "logs").iterdir()
    assert "**Attempt**: 3/3" in kept.read_text()


async def test_when_every_run_fails_the_errors_are_those_of_the_runs(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [GOOD], failing=(1, 2, 3))
    failed = await phase.fail()
    assert failed.errors == ["run 3 failed: the agent was killed by signal 9"]
    assert phase.verified == []
    assert len(phase.asked) == 3


async def test_a_run_that_failed_leaves_feedback_too(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [GOOD], failing=(1,))
    await phase.go()
    assert "run 1 failed: the agent was killed" in phase.asked[1]
    assert "run 1 failed" in (phase.found[1] or "")


@pytest.mark.parametrize("count", [0, -1])
async def test_no_attempts_is_a_clear_error_and_runs_nothing(tmp_path: Path, count: int) -> None:
    phase = Phase(tmp_path, [GOOD])
    with pytest.raises(ValueError, match="max_retries must be at least 1"):
        await phase.go(count)
    assert phase.asked == []


async def test_max_retries_counts_runs(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("x")])
    await phase.fail(1)
    assert len(phase.asked) == 1


async def test_a_verifier_that_crashes_is_an_error_that_says_so_and_costs_no_run_of_the_agent(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [RuntimeError("no such model")])
    failed = await phase.fail()
    assert failed.errors == ["the verifier failed: RuntimeError: no such model"]
    assert (len(phase.asked), phase.verified) == (1, [1, 2, 3])


async def test_an_answer_without_a_verdict_is_asked_for_again_not_passed(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("the verifier gave no verdict", ground=ResultGround.NO_VERDICT), GOOD])
    verified = await phase.go()
    assert (verified.attempt, len(phase.asked)) == (2, 1)


async def test_a_failure_without_errors_still_says_so(tmp_path: Path) -> None:
    assert (await Phase(tmp_path, [bad()]).fail()).errors == ["the verification failed without saying why"]
    assert "no error was reported" in str(PhaseVerificationFailed("p", []))


async def test_stale_feedback_goes_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "feedback.md").write_text("von gestern")
    phase = Phase(tmp_path, [GOOD])
    await phase.go()
    assert phase.found == [None]


async def test_feedback_that_cannot_be_written_ends_the_loop_and_says_so(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("falsch")])
    phase.feedback = FeedbackChannel(tmp_path / "gone")
    failed = await phase.fail()
    assert failed.errors[0] == "falsch"
    assert "feedback could not be written" in failed.errors[1]
    assert len(phase.asked) == 1


async def test_a_verification_that_was_stopped_ends_the_loop(tmp_path: Path) -> None:
    phase = Phase(tmp_path, [bad("the verifier was stopped: cancelled", ground=ResultGround.STOPPED)])
    await phase.fail()
    assert len(phase.asked) == 1


async def test_between_two_runs_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_sleep(*_: object) -> None:
        raise AssertionError("the loop slept")

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    phase = Phase(tmp_path, [bad("x"), GOOD])
    await phase.go()
    assert len(phase.asked) == 2


# feedback.md: whole or not there, with the attempt of the real maximum and a time that says its zone.


@pytest.fixture
def channel(tmp_path: Path) -> FeedbackChannel:
    return FeedbackChannel(tmp_path)


async def test_feedback_names_attempt_time_issues_and_what_to_do(channel: FeedbackChannel) -> None:
    assert await channel.send("- a.py:3: Größe fehlt", 2, 5)
    text = channel.feedback_path.read_bytes().decode("utf-8")
    assert "**Attempt**: 2/5" in text
    assert datetime.fromisoformat(re.findall(r"\*\*Time\*\*: (\S+)", text)[0]).tzinfo is not None
    assert "## Issues Found\n\n- a.py:3: Größe fehlt\n" in text
    assert "## Required Actions" in text


async def test_feedback_is_also_written_in_german(tmp_path: Path) -> None:
    channel = FeedbackChannel(tmp_path, max_attempts=4, locale="de")
    assert await channel.send("x", 4)
    text = channel.read() or ""
    assert "**Versuch**: 4/4" in text
    assert "Das war der letzte Versuch." in text


@pytest.mark.parametrize("attempt", [0, -1, 4])
async def test_an_attempt_beyond_the_maximum_is_refused(channel: FeedbackChannel, attempt: int) -> None:
    with pytest.raises(ValueError, match="attempts count from 1 to their maximum"):
        await channel.send("x", attempt, 3)
    assert not channel.has_pending_feedback()


async def test_pending_feedback_is_seen_and_cleared_once_or_twice(channel: FeedbackChannel) -> None:
    assert not channel.has_pending_feedback()
    await channel.send("x", 1)
    assert channel.has_pending_feedback()
    channel.remove_feedback()
    channel.remove_feedback()
    assert not channel.has_pending_feedback()


async def test_new_feedback_replaces_the_old_as_a_whole_and_leaves_nothing_beside_it(channel: FeedbackChannel) -> None:
    await channel.send("alt " * 1000, 1)
    await channel.send("neu", 2)
    assert "alt" not in (channel.read() or "")
    assert [path.name for path in channel.session_dir.iterdir()] == ["feedback.md"]


async def test_a_write_that_fails_is_told_and_keeps_what_was_there(
    channel: FeedbackChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    await channel.send("erste", 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert await channel.send("zweite", 2) is False
    assert "erste" in (channel.read() or "")
    assert [path.name for path in channel.session_dir.iterdir()] == ["feedback.md"]


async def test_without_a_folder_nothing_is_sent(tmp_path: Path) -> None:
    channel = FeedbackChannel(tmp_path / "nowhere")
    assert await channel.send("x", 1) is False
    channel.remove_feedback()
    assert channel.archive() is None


async def test_a_link_in_its_place_is_replaced_and_never_followed(channel: FeedbackChannel, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    channel.feedback_path.symlink_to(target)
    assert not channel.has_pending_feedback()
    assert await channel.send("x", 1)
    assert target.read_text() == "precious"
    assert not channel.feedback_path.is_symlink()


async def test_the_last_feedback_is_archived(channel: FeedbackChannel) -> None:
    await channel.send("letzte", 3)
    kept = channel.archive()
    assert kept is not None
    assert "letzte" in kept.read_text()
    assert kept.parent == channel.session_dir / "logs"
    assert not channel.has_pending_feedback()
    assert channel.archive() is None


# Scratch folders: gone when they are left, swept when their process died, and never anybody else's.

_DIES = """
import os, signal, sys
from pathlib import Path
from worker.verification.gates.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as fresh:
    (fresh / "deep").mkdir()
    (fresh / "deep" / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_scratch_folder_goes_when_it_is_left(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "made") as fresh:
        assert fresh.is_dir()
    assert list((tmp_path / "made").iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as mine:
        subprocess.run([sys.executable, "-c", _DIES, str(tmp_path)], check=False)
        assert len(list(tmp_path.iterdir())) == 2
        assert sweep_scratch(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [mine]
    assert sweep_scratch(tmp_path) == 0


def test_a_deep_scratch_folder_goes_when_it_is_left_and_when_it_is_swept(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as fresh:
        make_deep(fresh / "deep")
    assert list(tmp_path.iterdir()) == []
    make_deep(tmp_path / f"{PREFIX}deep")
    assert sweep_scratch(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_next_verification_sweeps_too(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _DIES, str(tmp_path)], check=False)
    with scratch_folder(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]


def test_a_link_and_a_file_of_that_name_are_let_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(precious)
    (tmp_path / f"{PREFIX}file").touch()
    assert sweep_scratch(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = [], tempfile.mkdtemp

    def made_and_swept(prefix: str, dir: Path) -> str:  # noqa: A002 - as mkdtemp has it
        made.append(real(prefix=prefix, dir=dir))
        if len(made) == 1:
            sweep_scratch(dir)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with scratch_folder(tmp_path) as fresh:
        assert fresh.is_dir()
        assert sweep_scratch(tmp_path) == 0
    assert len(made) == 2

"""A run of the real CLI that finished before its worker was killed is adopted: the service is asked once.

With a process for each message, and with a kept one, also in a sandbox: there a message has ended when the CLI says
so.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn, TurnRequest
from tests.claude.stub import Stub, calls, says, told
from tests.fault.matrix import guard_of
from tests.installation import WorkerProcess, children_of
from tests.support import alive, processes_with, put, wait_until
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.process_tags import inner_process_id

FIRST, SECOND = "Welchen?", "Welchen?\n\n<!-- STEP: what -->"


class Stage:
    """A worker, whose processes pass failpoints, and the turn that it carries out."""

    def __init__(self, settings: Settings, points: Path, worker: Callable[..., WorkerProcess], stub: Stub) -> None:
        self.settings = replace(settings, failpoint=str(points), lease_seconds=3.0)
        self.points, self._worker, self.stub, self.number = points, worker, stub, 1
        points.mkdir()

    def arm(self, point: str, order: str) -> None:
        put(self.points / point, order)

    async def passed(self, point: str, at: int = 1) -> int:
        """The process that passed it."""
        mark = self.points / f"{point}.{at}"
        return int(await wait_until(lambda: mark.exists() and mark.read_text()))

    def cli(self) -> int:
        """The CLI that runs."""
        [pid] = [
            pid
            for pid, command in processes_with(f"HOME={self.settings.sessions_dir}").items()
            if "--session-id" in command and (self.settings.sandbox == "off" or inner_process_id(pid) == 2)
        ]
        return pid

    def processes(self) -> Iterator[int]:
        """The worker with all that it started."""
        found = [self._started.pid]
        while found:
            yield (pid := found.pop())
            found += children_of(pid)

    async def carry_out(self, disturb: Callable[[], Any] | None = None) -> tuple[Turn, list[AttemptRecord]]:
        """The turn and its attempts; ``disturb`` is awaited while it runs."""
        self._started = self._worker("--processes", str(self.number), settings=self.settings)
        async with TurnsClient(self.settings) as client:
            messages = ({"role": "user", "content": "Baue einen Zähler"},)
            turn_id = await client.submitter.submit(
                TurnRequest(model="helix-consultant", messages=messages, session_id="s")
            )
            if disturb:
                await disturb()
            turn = await client.reader.await_result(turn_id, timeout=90)
            return turn, await client.reader.read_attempts(turn_id)

    async def nothing_is_left(self) -> None:
        """No recording stays behind."""
        await wait_until(
            lambda: not [path for path in self.settings.sessions_dir.glob("*/attempts/*") if not path.is_dir()]
        )


@pytest.fixture(params=["cold", "kept", "kept in a sandbox"])
def stage(
    request: pytest.FixtureRequest,
    claude_settings: Settings,
    stub: Stub,
    tmp_path: Path,
    worker_process: Callable[..., WorkerProcess],
) -> Stage:
    stub.replies = [says(FIRST), says(SECOND)]
    sandboxed = request.param == "kept in a sandbox"
    if sandboxed and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)
    settings = replace(claude_settings, claude_warm_seconds=0.0 if request.param == "cold" else 60.0)
    settings = replace(settings, sandbox="required" if sandboxed else "off")
    return Stage(settings, tmp_path / "points", worker_process, stub)


def _ends(attempt: AttemptRecord) -> dict[str, int]:
    """The ends of its model calls, as the proxy saw them: also of an adopted one."""
    return dict(attempt.completion["evidence"]["model_calls"]["ends"])


only_kept = pytest.mark.parametrize("stage", ["kept", "kept in a sandbox"], indirect=True)


@pytest.mark.parametrize("point", ["agent.ended", "link.decided", "validation.started", "answer.accepted"])
async def test_a_finished_run_whose_worker_is_killed_is_not_paid_for_again(point: str, stage: Stage) -> None:
    stage.arm(point, "kill")
    turn, (first, second) = await stage.carry_out(lambda: stage.passed(point))
    assert len(stage.stub.requests) == 2, "the service was asked again for an answer that it had given"
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert (first.text, second.text) == (FIRST, SECOND)
    assert second.completion["evidence"]["continued"] == "message", "the retry goes on from the adopted run's session"
    if point in {"agent.ended", "link.decided"}:
        assert (turn.delivery, first.last_delivery, second.last_delivery) == (3, 1, 3)
        assert first.completion["evidence"]["adopted"] == 1
    assert [_ends(each) for each in (first, second)] == [{"well": 1}] * 2
    await stage.nothing_is_left()


@only_kept
@pytest.mark.parametrize(("point", "at"), [("agent.ended", 2), ("message.moved", 2), ("link.decided", 3)])
async def test_the_second_message_of_a_kept_process_is_adopted_with_its_files_and_its_cost(
    point: str, at: int, stage: Stage
) -> None:
    stage.stub.replies = [says(FIRST), calls("Write", file_path="output/notiz.md", content="# Notiz"), says(SECOND)]
    stage.arm(point, f"kill@{at}")
    turn, (first, second) = await stage.carry_out(lambda: stage.passed(point, at))
    assert len(stage.stub.requests) == 3
    assert (turn.outcome, second.text) == (Outcome.PASSED_AFTER_RETRY, SECOND)
    assert [each.completion["evidence"]["start"] for each in (first, second)] == ["cold", "warm"]
    assert second.completion["evidence"]["adopted"] == 2
    assert [_ends(each) for each in (first, second)] == [{"well": 1}, {"tool": 1, "well": 1}]
    assert second.usage["cost_usd"] == pytest.approx(2 * first.usage["cost_usd"]), "each message counts its own calls"
    [note] = stage.settings.sessions_dir.glob("s/**/notiz.md")
    assert note.parent.parent.name.endswith("-2-2"), "its files are in the folder of its delivery"
    await stage.nothing_is_left()


@only_kept
@pytest.mark.parametrize("victim", ["cli", "guard", "guard and worker"])
async def test_an_answer_counts_whatever_is_killed_once_the_cli_has_said_that_it_is_done(
    victim: str, stage: Stage, tmp_path: Path
) -> None:
    stage.arm("agent.ended", f"meet:{tmp_path}/on")

    async def disturb() -> None:
        worker = await stage.passed("agent.ended")
        cli, guard = stage.cli(), guard_of(worker)
        os.kill(cli if victim == "cli" else guard, signal.SIGKILL)
        if victim == "guard and worker":
            os.kill(worker, signal.SIGKILL)
        await wait_until(lambda: not alive(cli))
        (tmp_path / "on").touch()

    turn, (first, second) = await stage.carry_out(disturb)
    assert len(stage.stub.requests) == 2
    assert (turn.outcome, first.text, second.text) == (Outcome.PASSED_AFTER_RETRY, FIRST, SECOND)
    assert second.completion["evidence"]["start"] == "cold"
    assert turn.delivery == (3 if victim == "guard and worker" else 2)


@only_kept
async def test_what_a_frozen_worker_did_not_read_is_in_the_recording_too(stage: Stage) -> None:
    stage.stub.replies = [says("Wel", "chen", "?", delay=0.3), says(SECOND)]
    stage.number = 2
    stage.arm("output.received", "stop")

    async def disturb() -> None:
        worker, cli = await stage.passed("output.received"), stage.cli()
        await wait_until(lambda: not alive(cli))  # its guard ends it with the lease
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)

    turn, (first, _) = await stage.carry_out(disturb)
    assert len(stage.stub.requests) == 2
    assert (turn.outcome, first.text) == (Outcome.PASSED_AFTER_RETRY, FIRST)
    assert first.completion["evidence"]["adopted"] == 1


@pytest.mark.parametrize("seconds", [3.0, 12.0])
async def test_a_host_that_was_frozen_goes_on_with_its_agent(seconds: float, stage: Stage) -> None:
    stage.stub.replies = [says("Wel", "chen", "?", delay=2.0), says(SECOND)]

    def signal_all(pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def freeze() -> None:
        await wait_until(lambda: stage.stub.requests)
        pids = list(stage.processes())
        assert stage.cli() in pids
        signal_all(pids, signal.SIGSTOP)
        over = time.monotonic() + seconds
        await wait_until(lambda: time.monotonic() > over)
        signal_all(pids, signal.SIGCONT)

    turn, (first, second) = await stage.carry_out(freeze)
    assert (turn.outcome, turn.delivery, len(stage.stub.requests)) == (Outcome.PASSED_AFTER_RETRY, 2, 2)
    assert (first.text, second.text) == (FIRST, SECOND)
    assert second.completion["evidence"].get("start", "warm") == "warm", "its process was kept"


@only_kept
async def test_an_answer_that_had_not_ended_is_asked_for_again(stage: Stage) -> None:
    stage.stub.replies = [says("Wel", "chen", "?", delay=1.0), says(FIRST), says(SECOND)]
    stage.arm("output.received", "kill")
    turn, (first, _) = await stage.carry_out(lambda: stage.passed("output.received"))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert first.text == FIRST
    assert "adopted" not in first.completion["evidence"]
    heard = told(stage.stub.requests[-1])
    assert sum("Baue einen Zähler" in each for each in heard) == 1, "the lost run left no trace"

"""A finished run is not paid for twice: the worker that takes the turn over adopts the run.

CI kills at one of the points between which nothing is stored or written; ``make faults`` at each of them.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.fault.conftest import Meeting, judged
from tests.fault.matrix import WHOLE, guard_of
from tests.installation import Installation, asked
from tests.support import alive, processes_with, put, wait_until

ANSWER = "Die Antwort, einmal bezahlt.\n\n<!-- STEP: done -->"
USED = {"input_tokens": 30, "output_tokens": 12, "cost_usd": 0.002}

NOTE = "# Notiz zu ADR-001: files\n"

#: With a budget: what a lost run is charged is given back once. Its file is no ADR, and need not be one.
QUESTION = replace(asked("frag"), token_limit=3000, cost_limit_usd=1.0, validators=("step_marker",))
#: The loop judges no answer that could speak of files: its run is stored before.
APART = replace(QUESTION, validators=("step_marker", "file_existence"))


class Points:
    """Failpoints of all processes, armed by files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def arm(self, point: str, order: str) -> None:
        put(self.folder / point, order)

    async def passed(self, point: str, at: int = 1) -> int:
        mark = self.folder / f"{point}.{at}"
        return int(await wait_until(lambda: mark.exists() and mark.read_text()))


@pytest.fixture
def points(tmp_path: Path) -> Points:
    return Points(tmp_path / "points")


@pytest.fixture
def paid(mortal: Installation, meeting: Meeting, points: Points) -> Installation:
    """Provide an agent that writes a file, says much, and reports its usage."""
    pieces = {"say": {"text": ANSWER, "pieces": 9}}
    written = {"write": {"path": "output/ADR-001-wahl.md", "content": NOTE}}
    script = [{"when": "", "attempts": [[written, pieces, {"usage": USED}]]}]
    meeting.script.write_text(yaml.safe_dump(script, allow_unicode=True))
    mortal.change(failpoint=str(points.folder))
    return mortal


def recordings(settings: Settings) -> list[str]:
    return [path.name for path in settings.sessions_dir.glob("*/attempts/*") if not path.is_dir()]


async def check(settings: Settings, client: TurnsClient, turn_id: str, meeting: Meeting, *, delivery: int) -> None:
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.response, turn.attempt) == (Outcome.PASSED, ANSWER, 1)
    assert [run["delivery"] for run in meeting.runs()] == [1], "a finished run was started again"
    assert turn.delivery == delivery
    assert (turn.tokens_used, turn.cost_used) == (42, 2000), "what the run used counts once, and no reservation"
    [record] = await client.reader.read_attempts(turn_id)
    assert record.last_delivery == 1
    told = [event for event in events if event.kind == "attempt.output"]
    if delivery > 1:
        after = max(number for number, event in enumerate(events) if event.kind == "attempt.lost")
        assert [event.data["text"] for event in events[after:] if event.kind == "attempt.output"] == [ANSWER]
    assert told
    output = settings.sessions_dir / turn.request.session_id / "output"
    assert (output / "ADR-001-wahl.md").read_text() == NOTE, "its files are those of the run that finished"
    await wait_until(lambda: recordings(settings) == [])


@pytest.mark.parametrize(
    ("point", "question", "delivery"),
    [
        ("agent.ended", QUESTION, 2),
        *((point, QUESTION, 2) for point in ("link.decided", "validation.started") if WHOLE),
        ("answer.accepted", QUESTION, 2),
        ("answer.sealed", QUESTION, 1),
        ("answer.published", QUESTION, 1),
        ("run.committed", APART, 1),
    ],
)
async def test_a_worker_killed_after_its_agent_finished_starts_no_second_agent_and_leaves_no_recording(
    point: str,
    question: TurnRequest,
    delivery: int,
    paid: Installation,
    client: TurnsClient,
    meeting: Meeting,
    points: Points,
) -> None:
    points.arm(point, "kill")
    paid.worker()
    turn_id = await client.submitter.submit(question)
    await points.passed(point)
    await check(paid.settings, client, turn_id, meeting, delivery=delivery)


async def test_a_finished_run_of_a_turn_that_was_cancelled_when_its_worker_had_died_leaves_no_recording(
    paid: Installation, client: TurnsClient, points: Points
) -> None:
    points.arm("agent.ended", "kill")
    paid.worker()
    turn_id = await client.submitter.submit(QUESTION)
    await points.passed("agent.ended")
    await client.canceller.cancel(turn_id)
    turn = await client.reader.await_result(turn_id, timeout=240)
    assert turn.outcome is Outcome.CANCELLED
    await wait_until(lambda: recordings(paid.settings) == [])


async def test_a_guard_killed_after_its_agent_finished_starts_no_second_agent(
    paid: Installation, client: TurnsClient, meeting: Meeting, points: Points
) -> None:
    points.arm("agent.ended", f"meet:{meeting.directory}/on")
    paid.worker()
    turn_id = await client.submitter.submit(QUESTION)
    guard = guard_of(await points.passed("agent.ended"))
    os.kill(guard, signal.SIGKILL)
    await wait_until(lambda: not alive(guard))
    (meeting.directory / "on").touch()
    await check(paid.settings, client, turn_id, meeting, delivery=1)


async def test_worker_and_guard_killed_together_after_the_agent_finished_start_no_second_agent(
    paid: Installation, client: TurnsClient, meeting: Meeting, points: Points
) -> None:
    points.arm("agent.ended", f"meet:{meeting.directory}/on")
    paid.worker()
    turn_id = await client.submitter.submit(QUESTION)
    holder = await points.passed("agent.ended")
    assert [name for name in recordings(paid.settings) if name.endswith(".finished")], "noted before it was reported"
    for pid in (guard_of(holder), holder):
        os.kill(pid, signal.SIGKILL)
    (meeting.directory / "on").touch()
    await check(paid.settings, client, turn_id, meeting, delivery=2)


async def test_a_worker_killed_again_and_again_while_it_adopts_starts_no_second_agent(
    paid: Installation, client: TurnsClient, meeting: Meeting, points: Points
) -> None:
    points.arm("agent.ended", "kill")
    points.arm("run.adopted", "kill")
    paid.worker()
    turn_id = await client.submitter.submit(QUESTION)
    await points.passed("run.adopted")
    await check(paid.settings, client, turn_id, meeting, delivery=3)


async def test_an_agent_killed_with_its_worker_left_nothing_to_adopt(
    mortal: Installation, client: TurnsClient, meeting: Meeting
) -> None:
    worker = mortal.worker()
    turn_id = await mortal.ask("held")
    await wait_until(lambda: meeting.begun)
    for pid in worker.children().values():
        os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not processes_with(f"HELIX_AGENT_MARK={turn_id}.1.1"))
    await wait_until(lambda: recordings(mortal.settings) == [])
    meeting.go()
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, [run["delivery"] for run in meeting.runs()]) == (Outcome.PASSED, [1, 2])


async def test_a_frozen_worker_keeps_a_run_that_finished_meanwhile_where_nobody_else_took_the_turn(
    mortal: Installation, client: TurnsClient, meeting: Meeting
) -> None:
    worker = mortal.worker()
    turn_id = await mortal.ask("held")
    await wait_until(lambda: meeting.begun)
    [engine] = worker.children().values()
    os.kill(engine, signal.SIGSTOP)
    over = time.monotonic() + 1.2 * mortal.settings.lease_seconds
    meeting.go()
    await wait_until(lambda: time.monotonic() > over)
    os.kill(engine, signal.SIGCONT)
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery) == (Outcome.PASSED, 1)
    assert "attempt.lost" not in [event.kind for event in events]
    assert [run["delivery"] for run in meeting.runs()] == [1]
    await wait_until(lambda: recordings(mortal.settings) == [])

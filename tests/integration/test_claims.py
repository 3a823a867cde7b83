"""The rule ``claims`` in the engine: what a run did is stored, judged with, and survives its worker."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.integration.engine import Bench, Play, says
from worker.enforcement.tool_call_log import ToolCallLog, ToolCallRecorder
from worker.runners.base import Emit, Order, RunResult, Stop


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{rule: claims, name: honest}]")
    (settings.root / "docs").mkdir(exist_ok=True)
    return replace(settings, policy=str(policy), writable=("docs",))


NOTHING = ToolCallLog()


def works(
    text: str, do: Callable[[Path], object] = lambda folder: None, tool_calls: ToolCallLog | None = NOTHING
) -> Play:
    """An agent that does something in its folder, and reports its tools."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        do(order.directory)
        return replace(says(text)(order, emit, stop), tool_calls=tool_calls)

    return play


def of_tests(passed: int, failed: int = 0) -> ToolCallLog:
    writer = ToolCallRecorder()
    writer.begin("1", "run", "pytest -q")
    writer.end("1", ok=not failed, code=1 if failed else None, output=f"{failed} failed, {passed} passed in 1s")
    return writer.log


async def test_an_agent_that_claims_too_much_is_asked_again_with_the_evidence(bench: Bench) -> None:
    first, second = (
        works("All 12 tests pass.", tool_calls=of_tests(11, 1)),
        works("All 12 tests pass.", tool_calls=of_tests(12)),
    )
    turn = await bench.outcome(first, second)
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2)
    attempts = await bench.client.reader.read_attempts(turn.turn_id)
    assert "the last `pytest -q` ended with: exit code 1, 1 failed, 11 passed" in bench.runner.orders[1].prompt
    assert [issue.validator for issue in attempts[0].issues] == ["honest"]


async def test_a_file_counts_that_only_the_disk_shows(bench: Bench) -> None:
    def shell(folder: Path) -> None:
        (folder / "src").mkdir()
        (folder / "src" / "app.py").write_text("x = 1\n")

    assert (await bench.outcome(works("I created `src/app.py`.", shell))).outcome is Outcome.PASSED


async def test_a_file_of_the_project_counts_where_the_turn_changed_it(bench: Bench) -> None:
    guide = bench.settings.root / "docs" / "guide.md"
    guide.write_text("old")
    long_ago = guide.stat().st_mtime - 3600
    os.utime(guide, (long_ago, long_ago))
    unchanged = "I updated `docs/guide.md`."
    turn = await bench.outcome(works(unchanged), works(unchanged, lambda _: guide.write_text("new")))
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2)
    (issue,) = (await bench.client.reader.read_attempts(turn.turn_id))[0].issues
    assert issue.code == "CLAIMED_FILE_NOT_CHANGED"


async def test_a_runner_without_tool_events_is_not_rejected(bench: Bench) -> None:
    turn = await bench.outcome(works("All 12 tests pass.", tool_calls=None))
    assert turn.outcome is Outcome.PASSED
    (issue,) = (await bench.client.reader.read_attempts(turn.turn_id))[0].issues
    assert issue.code == "CLAIMS_NOT_CHECKABLE"


async def test_what_an_earlier_attempt_did_counts_for_its_part_of_the_answer(bench: Bench) -> None:
    turn = await bench.outcome(
        works("I created `a.py` and `b.py`.", lambda folder: (folder / "a.py").write_text("x")),
        works("I created `a.py` and `b.py`.", lambda folder: (folder / "b.py").write_text("x")),
    )
    assert (turn.outcome, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, 2)


async def test_a_secret_in_a_command_is_not_stored(bench: Bench) -> None:
    writer = ToolCallRecorder()
    writer.begin("1", "run", "curl -H 'Authorization: Bearer sk-ant-api03-abcdefghijklmnopqrstuvwxyz' x")
    turn = await bench.outcome(works("Done.", tool_calls=writer.log))
    (attempt,) = await bench.client.reader.read_attempts(turn.turn_id)
    assert "abcdefghij" not in str(attempt.evidence)
    assert attempt.evidence["claims"]["calls"]


async def test_without_the_rule_nothing_about_the_run_is_stored(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: []")
    turn = await bench.outcome(works("All 12 tests pass.", tool_calls=of_tests(1)))
    (attempt,) = await bench.client.reader.read_attempts(turn.turn_id)
    assert attempt.evidence == {}

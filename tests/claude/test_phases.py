"""Whole phases with the real CLI as agent and as verifier: through the queue, a real worker, and the command line."""

import asyncio
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn, TurnState
from tests.claude.stub import Reply, calls, says, told
from tests.claude.test_verifier import Judge, verdict
from tests.installation import WorkerProcess, environ_of, turns
from tests.support import wait_for

Workers = Callable[..., WorkerProcess]

GOOD, BROKEN = "def add(a, b):\n    return a + b\n", "def add(a, b:\n"
PHASES = "".join(
    f"- {{id: {name}, description: Write add.py., output_files: [add.py], {more}}}\n"
    for name, more in (
        ("first", "verify_agent: true"),
        ("second", "verify_agent: true"),
        ("third", "verify_agent: true"),
    )
)


@dataclass
class Cast(Judge):
    """Agent and verifier of several phases: each writes and says what is next for its phase; the last repeats."""

    writes: dict[str, list[str]] = field(default_factory=dict)
    verdicts: dict[str, list[Reply]] = field(default_factory=lambda: defaultdict(lambda: [verdict(True)]))
    models: list[tuple[str, str]] = field(default_factory=list)

    def take(self, request: dict[str, Any]) -> Reply:
        conversation = "\n".join(told(request))
        judged = re.search(r'HELIX verification of phase "(\w+)"', conversation)
        if judged:
            self.replies = [_next(self.verdicts[judged[1]])]
        elif _is_tool_result(request):
            self.replies = [says("Done.")]
        else:
            [phase, *_] = re.findall(r"Phase (\w+):", conversation)
            self.models.append((phase, request["model"]))
            self.replies = [calls("Write", file_path="output/add.py", content=_next(self.writes[phase]))]
        return super().take(request)


def _next(left: list[Any]) -> Any:
    return left.pop(0) if len(left) > 1 else left[0]


def _is_tool_result(request: dict[str, Any]) -> bool:
    content = request["messages"][-1]["content"]
    return isinstance(content, list) and any(block["type"] == "tool_result" for block in content)


@pytest.fixture
def stub() -> Iterator[Cast]:
    with Cast() as cast:
        yield cast


@pytest.fixture
def installed(claude_settings: Settings) -> Settings:
    (claude_settings.root / "work").mkdir()
    models = {"helix-consultant": "claude_cli", "expert": "claude_cli:expert-model"}
    return replace(claude_settings, models=models, locale="en")


def run_phases(settings: Settings, phases: str, *arguments: str) -> tuple[int, list[Any]]:
    """Exit code and lines of ``turns phase run``."""
    (settings.root / "work" / "phases.yaml").write_text(phases)
    command = turns("phase", "run", str(settings.root / "work"), "--json", *arguments)
    done = subprocess.run(command, env=environ_of(settings), capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()] if arguments else json.loads(
        done.stdout
    )


def cli(settings: Settings, *arguments: str) -> Any:
    done = subprocess.run(turns(*arguments, "--json"), env=environ_of(settings), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def read(settings: Settings, turn_id: str) -> Turn:
    async def ask() -> Turn:
        async with TurnsClient(settings) as client:
            return await client.reader.read_turn(turn_id)

    return asyncio.run(ask())


def test_phases_are_verified_at_once_and_after_feedback_at_the_second_and_third_attempt(
    installed: Settings, worker_process: Workers, stub: Cast
) -> None:
    stub.writes = {"first": [GOOD], "second": [BROKEN, GOOD], "third": [BROKEN, GOOD]}
    stub.verdicts["third"] = [verdict(False, "add.py:1: no docstring"), verdict(True)]
    worker_process(settings=installed)
    code, events = run_phases(installed, PHASES, "--watch")
    ends = [event["data"] for event in events if event["kind"] == "turn.finished"]
    assert [(end["outcome"], end["attempts"]) for end in ends] == [
        ("passed", 1),
        ("passed_after_retry", 2),
        ("passed_after_retry", 3),
    ]
    assert code == 0
    folder = installed.root / "work" / "phases" / "third"
    assert (folder / "output" / "add.py").read_text() == GOOD
    assert not (folder / "feedback.md").exists()
    [conversation] = [
        text
        for text in map(json.dumps, map(told, stub.requests))
        if "Phase third" in text and "no docstring" in text and "HELIX verification" not in text
    ][-1:]
    assert "Python syntax error" in conversation, "both rejections stand in the conversation that went on"
    passed = [event["data"]["success"] for event in events if event["kind"] == "verifier.judged"]
    assert passed == [True, True, False, True]


def test_a_phase_that_fails_goes_to_another_model_then_to_a_person_whose_decision_resumes_it(
    installed: Settings, worker_process: Workers, stub: Cast
) -> None:
    installed = replace(installed, escalation_model="expert")
    stub.writes = {"stubborn": [BROKEN, GOOD], "late": [BROKEN]}
    stub.verdicts["stubborn"] = [verdict(False, "add.py:1: too short"), verdict(True)]
    phases = "\n".join(
        (
            "- {id: stubborn, description: Write add.py., output_files: [add.py], verify_agent: true, max_attempts: 1}",
            "- {id: late, description: Write add.py., output_files: [add.py], max_attempts: 1}",
        )
    )
    worker_process(settings=installed)
    _, [stubborn, late] = run_phases(installed, phases)
    first, second = stubborn["turn_id"], late["turn_id"]
    wait_for(lambda: read(installed, first).state is TurnState.SUSPENDED)
    assert [turn["turn_id"] for turn in cli(installed, "inbox", "list")] == [first]
    assert stub.models[-1] == ("stubborn", "expert-model")
    shown = cli(installed, "inbox", "show", first)
    assert (shown["proposal"]["attempt"], shown["proposal"]["issues"][0]["message"]) == (2, "add.py:1: too short")
    assert (installed.root / shown["proposal"]["files"] / "add.py").read_text() == GOOD
    cli(installed, "inbox", "retry", first, "--note", "Two lines are enough.")
    wait_for(lambda: read(installed, second).state is TurnState.SUSPENDED)
    assert any("Two lines are enough." in text for text in map(json.dumps, map(told, stub.requests)))
    ended = read(installed, first)
    assert (ended.outcome, ended.attempt, ended.stage) == (Outcome.PASSED_AFTER_RETRY, 3, 2)
    cli(installed, "inbox", "approve", second)
    wait_for(lambda: read(installed, second).outcome)
    assert read(installed, second).outcome is Outcome.PASSED_BY_HUMAN
    assert (installed.root / "work" / "phases" / "late" / "output" / "add.py").read_text() == BROKEN

"""The certification kit drives real programs, and tells a runner that believes its agent from one that has evidence."""

import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.settings import Settings
from tests.installation import turns
from worker.certification.trial import SITUATIONS, tried
from worker.runners.base import Completion, Order, RunResult, Verdict
from worker.runners.guard.launch import Play
from worker.runners.guard.processes import Processes
from worker.runners.http.runner import OpenAiHttpRunner


def certify(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(turns("certify-runner", *arguments), capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout or done.stderr


def test_our_runner_is_certified_in_each_kind_of_situation() -> None:
    some = (
        "normal answer",
        "output limit",
        "cut after",
        "HTTP 429",
        "SIGTERM",
        "exit code 0 forced",
        "leaves a process",
    )
    code, said = certify("openai_http:stub", "--json", *(word for text in some for word in ("--only", text)))
    assert code == 0, said
    found = json.loads(said)
    assert {name: counts["false_complete"] for name, counts in found["counts"].items() if name != "agents"} == {
        "without": 0,
        "ours": 0,
    }
    ours = found["counts"]["ours"]
    assert ours["kept"] == ours["true_ends"] >= 2
    assert found["counts"]["agents"]["false_complete"] > 0, "exit code 0 alone proves nothing"


def test_a_wrong_name_is_one_line_and_exit_code_2() -> None:
    assert certify("no_such_runner")[0] == 2
    code, said = certify("openai_http:stub", "--only", "never heard of")
    assert code == 2
    assert "no situation has never heard of in its name" in said


class Believing(OpenAiHttpRunner):
    """It takes its agent's word: exit code 0 is complete. ``seen`` has it ask the door's witness as well."""

    def __init__(self, agents: Processes, settings: Settings, *, seen: bool) -> None:
        super().__init__(agents, settings)
        self._seen = seen

    def prepare(self, order: Order) -> Play | RunResult:
        play = super().prepare(order)
        assert isinstance(play, Play)
        honest = play.conclude

        def conclude(ending: Any, emit: Any) -> RunResult:
            from worker.runners.witnessed import weigh

            result = honest(ending, emit)
            if ending.exit.code:
                return result
            believed = Completion(verdict=Verdict.COMPLETE, reason="exit 0", evidence=ending.evidence)
            return replace(result, completion=weigh(believed, ending.witnessed) if self._seen else believed)

        return replace(play, conclude=conclude)


@pytest.mark.parametrize("seen", [False, True])
def test_a_runner_that_believes_its_agent_is_found_out_and_the_witness_saves_it(seen: bool) -> None:
    agents = Processes()
    settings = Settings(openai_url="http://certify.invalid/v1", openai_api_key="sk-x", box="off")
    names = {"normal answer", "output limit", "cut after the first piece", "content filter", "tool call, then HTTP 400"}
    wanted = [situation for situation in SITUATIONS if situation.name in names]
    try:
        rows = list(tried(Believing(agents, settings, seen=seen), "stub", "", wanted, 3))
    finally:
        agents.stop()
    problems = {row.situation.name for row in rows if row.problem}
    assert problems == (set() if seen else names - {"normal answer"})
    assert all(row.false(row.agents) for row in rows if row.situation.name != "normal answer")

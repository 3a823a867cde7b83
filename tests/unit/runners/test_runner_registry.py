""""""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from api_client.contract.completion import Completion, Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from tests.inline.runner import InlineRunner
from tests.runs import Asked
from worker.agents import runner_lookup as registry
from worker.agents.model_availability import ModelAvailability
from worker.agents.runner_lookup import build_runner
from worker.runners.sandbox.agent_process import AgentExit, AgentProcess
from worker.runners.sandbox.bubblewrap import Isolation
from worker.runners.sandbox.guard import DOUBT_SECONDS
from worker.runners.sandbox.supervision import PATIENCE, LimitReached, RunEnding, Supervision
from worker.runners.sent_input import MOST_CHARS, SentInput


def test_a_name_gives_a_runner_and_no_option() -> None:
    runner, option = build_runner("scripted")
    assert (runner.name, option) == ("scripted", "")


def test_what_stands_after_the_first_colon_is_the_option() -> None:
    runner, option = build_runner("scripted:scripts/a:b.yaml")
    assert (runner.name, option) == ("scripted", "scripts/a:b.yaml")


def test_all_models_of_a_runner_share_one_object() -> None:
    assert build_runner("scripted:a.yaml")[0] is build_runner("scripted")[0]


def test_an_unknown_runner_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"no runner 'clade'; there are: acp, claude_cli, .*scripted"):
        build_runner("clade:x")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The entry points of an installed package, to be written."""
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._load_runner.cache_clear()
    yield info / "entry_points.txt"
    registry._load_runner.cache_clear()


def test_a_runner_of_ones_own_is_found_through_its_entry_point(site: Path) -> None:
    site.write_text("[helix_turns.runners]\nmine = tests.inline.runner:InlineRunner\n")
    runner, option = build_runner("mine:a.yaml")
    assert (type(runner), option) == (InlineRunner, "a.yaml")
    assert runner is build_runner("mine:b.yaml")[0]


def test_no_entry_point_replaces_one_of_ours(site: Path) -> None:
    site.write_text("[helix_turns.runners]\nscripted = tests.inline.runner:InlineRunner\n")
    assert build_runner("scripted")[0].name == "scripted"


def test_an_entry_point_that_does_not_load_is_a_settings_error_that_names_it(site: Path) -> None:
    site.write_text("[helix_turns.runners]\nbroken = no_such_module:Runner\n")
    with pytest.raises(
        SettingsError, match=r"the runner 'broken' \(no_such_module:Runner\) does not load: .*No module"
    ):
        build_runner("broken")


# What a worker says that it can run.


def test_a_worker_names_the_models_it_can_run_and_why_not_the_others_and_looks_again(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- attempts: [[say: hi]]")
    models = {"well": f"scripted:{script}", "demo|1": "scripted", "none": "nobody", "claude": "claude_cli"}
    ability = ModelAvailability(Settings(root=tmp_path, models=models, claude_path=str(tmp_path / "claude")))
    assert (ability.models, ability.labels) == ((), ""), "nothing is left to others before the first look"
    assert ability.check_models().keys() == {"none", "claude"}
    assert "no such program" in ability.unavailable["claude"]
    assert ability.labels == "\nwell\ndemo_1\n"
    script.unlink()
    assert ability.check_if_due() == ("well", "demo|1"), "it looks now and then"
    assert "script" in ability.check_models()["well"]
    script.write_text("- attempts: [[say: hi]]")
    ability.check_models()
    assert ability.models == ("well", "demo|1")


def test_who_knows_no_settings_leaves_no_model_to_others() -> None:
    ability = ModelAvailability()
    assert (dict(ability.check_models()), ability.check_if_due(), ability.labels) == ({}, (), "")


# What is kept of what an agent was sent.


def test_secrets_are_masked_in_every_text() -> None:
    sent = SentInput(system="key abc", messages=({"role": "user", "content": "my abc"},), continues="history")
    assert sent.to_dict(lambda text: text.replace("abc", "***")) == {
        "system": "key ***",
        "messages": [{"role": "user", "content": "my ***"}],
        "continues": "history",
    }


def test_of_a_very_long_conversation_the_newest_is_kept_and_what_is_missing_is_said() -> None:
    messages = [{"role": "user", "content": letter * MOST_CHARS} for letter in "ab"] + [
        {"role": "user", "content": "c"}
    ]
    kept = SentInput(messages=messages).to_dict(str)["messages"]
    assert kept[2]["content"] == "c"
    assert kept[1]["content"] == "[1 characters are left out here]\n" + "b" * (MOST_CHARS - 1)
    assert kept[0]["content"] == f"[{MOST_CHARS} characters are left out here]\n"


# What the watch over an agent says of its end, where the agent had ended before our order to end it arrived.


@dataclass
class Ended:
    """A process that has ended; what it said is still in its pipe."""

    exit: AgentExit
    said: list[bytes]
    pid: int = 0
    asked: list[str] = field(default_factory=list)

    def wait_for_end(self, _seconds: float) -> AgentExit | None:
        return self.exit

    def read_output(self, _seconds: float) -> bytes | None:
        return self.said.pop(0) if self.said else None

    def extend_lease(self, _lease_ends: float) -> None:
        self.asked.append("extend")

    def terminate_agent(self, grace: float) -> None:
        self.asked.append(f"terminate {grace:g}")

    def read_stderr(self) -> str:
        return ""

    def close(self) -> None: ...


@dataclass
class Limits:
    deadline: float = math.inf
    idle_seconds: float = math.inf
    kill_grace_seconds: float = 5.0


def watched(exit_: AgentExit, said: list[bytes], reason: str) -> tuple[str, list[bytes]]:
    """Why an agent was ended, and the lines that were heard of it, where ``reason`` was there before it was heard."""
    lines: list[bytes] = []
    supervision = Supervision(cast("AgentProcess", Ended(exit_, said)), Limits(), Asked(reason), lines.append)
    supervision.check_limits()
    return supervision.run().cause, lines


def test_an_agent_that_had_finished_when_its_lease_was_found_over_was_not_ended_and_is_heard_to_its_last_line() -> None:
    assert watched(AgentExit(code=0), [b"one\ntw", b"o\n", b"three"], "fenced") == ("", [b"one", b"two", b"three"])


@pytest.mark.parametrize("reason", ["shutdown", "cancelled"])
def test_an_agent_that_had_finished_when_it_was_to_be_stopped_was_not_ended_if_all_it_said_was_heard(
    reason: str,
) -> None:
    assert watched(AgentExit(code=0), [], reason)[0] == ""
    assert watched(AgentExit(code=0), [b"one\n"], reason) == (reason, [])


@pytest.mark.parametrize(
    "exit_",
    [
        AgentExit(code=0, cause="terminated"),
        AgentExit(code=-9, cause="terminated"),
        AgentExit(code=1),
        AgentExit(code=-15),
    ],
)
def test_an_agent_that_did_not_finish_by_itself_was_ended_for_the_reason_it_was_to_be_ended(exit_: AgentExit) -> None:
    cause, _ = watched(exit_, [b"one\n"], "fenced")
    assert cause == "fenced"


@dataclass
class Doubtful(Asked):
    in_doubt: bool = True


def test_an_agent_whose_lease_is_in_doubt_is_not_ended_until_the_store_has_said_or_says_nothing() -> None:
    process, stop = Ended(AgentExit(), []), Doubtful("fenced")
    supervision = Supervision(cast("AgentProcess", process), Limits(), stop, lambda _: None)
    for _ in range(3):
        supervision.check_limits()
    assert "terminate 0" not in process.asked
    stop.in_doubt = False
    supervision.check_limits()
    assert process.asked[-1] == "terminate 0"
    silent = Ended(AgentExit(), [])
    supervision = Supervision(cast("AgentProcess", silent), Limits(), Doubtful("fenced"), lambda _: None)
    rounds = int(2 * DOUBT_SECONDS / PATIENCE)
    for _ in range(rounds):
        supervision.check_limits()
    assert "terminate 0" not in silent.asked
    supervision.check_limits()
    assert silent.asked[-1] == "terminate 0", "a guard that is frozen suspends nobody"


@pytest.mark.parametrize("doubtful", [True, False])
def test_time_in_which_nobody_could_hear_an_agent_is_not_its_silence(
    doubtful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("worker.runners.sandbox.supervision.time", SimpleNamespace(monotonic=lambda: now[0]))
    process, stop = Ended(AgentExit(), []), Doubtful("", in_doubt=doubtful)
    limits = Limits(idle_seconds=10.0)
    supervision = Supervision(cast("AgentProcess", process), limits, stop, lambda _: None)
    for step in [0.5] * 100 if doubtful else [60.0]:
        now[0] += step
        supervision.check_limits()
    assert process.asked == ["extend"]
    stop.in_doubt = False
    for _ in range(21):
        now[0] += 0.5
        supervision.check_limits()
    assert process.asked == ["extend", "terminate 5"]


def test_an_agent_over_a_limit_is_heard_no_more_however_well_it_ends() -> None:
    heard: list[bytes] = []

    def hear(line: bytes) -> None:
        heard.append(line)
        raise LimitReached("too much")

    process = Ended(AgentExit(code=0), [b"one\n"])
    ending = Supervision(cast("AgentProcess", process), Limits(), Asked(""), hear).run()
    assert (ending.cause, ending.detail, heard) == ("limit", "too much", [b"one"])


@pytest.mark.parametrize(
    ("ending", "by_others"),
    [
        (RunEnding(exit=AgentExit(code=-9)), True),
        (RunEnding(exit=AgentExit(code=137), sandbox=Isolation("bubblewrap")), True),
        (RunEnding(exit=AgentExit(code=137), sandbox=Isolation("none")), False),
        (RunEnding(exit=AgentExit(code=-9, cause="terminated")), False),
        (RunEnding(exit=AgentExit(code=-9), cause="idle"), False),
        (RunEnding(exit=AgentExit(code=-6)), False),
        (RunEnding(exit=AgentExit(code=0)), False),
    ],
)
def test_a_sigkill_that_neither_worker_nor_guard_sent_is_known_as_one_of_others(
    ending: RunEnding, by_others: bool
) -> None:
    assert (ending.evidence.get("killed_by") == "others") is by_others
    completion = Completion(verdict=Verdict.INCOMPLETE, reason="", evidence=ending.evidence)
    assert completion.killed_from_outside is by_others
    assert not Completion(verdict=Verdict.ERROR, reason="", evidence=ending.evidence).killed_from_outside

"""What the watch over an agent says of its end, where the agent had ended before our order to end it arrived."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import pytest

from worker.runners.base import Completion, Verdict
from worker.runners.guard.agent_process import AgentProcess, Exit
from worker.runners.guard.box import Level
from worker.runners.guard.supervision import Ending, LimitReached, Supervision


@dataclass
class Ended:
    """A process that has ended; what it said is still in its pipe."""

    exit: Exit
    said: list[bytes]
    pid: int = 0
    asked: list[str] = field(default_factory=list)

    def wait(self, _seconds: float) -> Exit | None:
        return self.exit

    def read(self, _seconds: float) -> bytes | None:
        return self.said.pop(0) if self.said else None

    def extend(self, _lease_ends: float) -> None:
        self.asked.append("extend")

    def terminate(self, grace: float) -> None:
        self.asked.append(f"terminate {grace:g}")

    def stderr(self) -> str:
        return ""

    def close(self) -> None: ...


@dataclass
class Limits:
    deadline: float = math.inf
    idle_seconds: float = math.inf
    kill_grace_seconds: float = 5.0


@dataclass
class Stop:
    reason: str
    lease_ends: float = math.inf


def watched(exit_: Exit, said: list[bytes], reason: str) -> tuple[str, list[bytes]]:
    """Why an agent was ended, and the lines that were heard of it, where ``reason`` was there before it was heard."""
    lines: list[bytes] = []
    supervision = Supervision(cast("AgentProcess", Ended(exit_, said)), Limits(), Stop(reason), lines.append)
    supervision.check()
    return supervision.run().cause, lines


def test_an_agent_that_had_finished_when_its_lease_was_found_over_was_not_ended_and_is_heard_to_its_last_line() -> None:
    assert watched(Exit(code=0), [b"one\ntw", b"o\n", b"three"], "fenced") == ("", [b"one", b"two", b"three"])


@pytest.mark.parametrize("reason", ["shutdown", "cancelled"])
def test_an_agent_that_had_finished_when_it_was_to_be_stopped_was_not_ended_if_all_it_said_was_heard(
    reason: str,
) -> None:
    assert watched(Exit(code=0), [], reason)[0] == ""
    assert watched(Exit(code=0), [b"one\n"], reason) == (reason, [])


@pytest.mark.parametrize(
    "exit_", [Exit(code=0, cause="terminated"), Exit(code=-9, cause="terminated"), Exit(code=1), Exit(code=-15)]
)
def test_an_agent_that_did_not_finish_by_itself_was_ended_for_the_reason_it_was_to_be_ended(exit_: Exit) -> None:
    cause, _ = watched(exit_, [b"one\n"], "fenced")
    assert cause == "fenced"


def test_an_agent_over_a_limit_is_heard_no_more_however_well_it_ends() -> None:
    heard: list[bytes] = []

    def hear(line: bytes) -> None:
        heard.append(line)
        raise LimitReached("too much")

    process = Ended(Exit(code=0), [b"one\n"])
    ending = Supervision(cast("AgentProcess", process), Limits(), Stop(""), hear).run()
    assert (ending.cause, ending.detail, heard) == ("limit", "too much", [b"one"])


@pytest.mark.parametrize(
    ("ending", "by_others"),
    [
        (Ending(exit=Exit(code=-9)), True),
        (Ending(exit=Exit(code=137), box=Level("bubblewrap")), True),
        (Ending(exit=Exit(code=137), box=Level("none")), False),
        (Ending(exit=Exit(code=-9, cause="terminated")), False),
        (Ending(exit=Exit(code=-9), cause="idle"), False),
        (Ending(exit=Exit(code=-6)), False),
        (Ending(exit=Exit(code=0)), False),
    ],
)
def test_a_sigkill_that_neither_worker_nor_guard_sent_is_known_as_one_of_others(
    ending: Ending, by_others: bool
) -> None:
    assert (ending.evidence.get("killed_by") == "others") is by_others
    completion = Completion(verdict=Verdict.INCOMPLETE, reason="", evidence=ending.evidence)
    assert completion.lost is by_others
    assert not Completion(verdict=Verdict.ERROR, reason="", evidence=ending.evidence).lost

"""A runner of a package that breaks after it started its agent: nothing of it works on beside what follows."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.contract.turn import Outcome, TurnState
from tests.integration.engine import GOOD, Bench, Play, says
from tests.support import wait_for
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.runners.sandbox import process_tags
from worker.runners.sandbox.guard_client import shared_processes

_WORKS = "import time; print('at work', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def _no_agents_left() -> Iterator[None]:
    yield
    shared_processes().stop_guard()


def starts_an_agent(error: Exception | None, seen: list[Order]) -> Play:
    """Starts a real agent, hears it, and then raises, or returns what is no result."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        agent = shared_processes().spawn_agent(
            [sys.executable, "-S", "-c", _WORKS],
            mark=order.process_tag,
            env={},
            cwd=order.directory,
            lease_ends=math.inf,
        )
        while not agent.read_output(0.1):
            pass
        seen.append(order)
        agent.close()
        if error:
            raise error
        return "no result"  # type: ignore[return-value]

    return play


def alive(order: Order) -> bool:
    return order.process_tag in [mark for _, mark in process_tags.process_tags()]


@pytest.mark.parametrize("error", [KeyError("x"), None], ids=["raises", "returns something else"])
async def test_the_agent_of_a_runner_that_breaks_is_gone_when_its_turn_ends(
    bench: Bench, error: Exception | None
) -> None:
    seen: list[Order] = []
    turn = await bench.outcome(starts_an_agent(error, seen))
    assert turn.outcome is Outcome.ERROR
    assert [alive(order) for order in seen] == [False]


async def test_the_agent_of_a_runner_that_breaks_is_gone_before_the_next_delivery_runs(bench: Bench) -> None:
    seen: list[Order] = []
    turn = await bench.outcome(starts_an_agent(ConnectionError("refused"), seen), says(GOOD))
    assert (turn.state, turn.next) == (TurnState.QUEUED, "turn.run/1")
    assert [alive(order) for order in seen] == [False]


#: Leaves one behind as it should not: its parent has ended, it has another session, and no environment.
_HIDES = """
import os, sys
if sys.argv[1] == "orphan" and os.fork():
    sys.exit(0)
os.setsid()
os.execve("/bin/sleep", ["sleep", "600"], {})
"""
_STARTS = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", HIDES, KIND])
print("at work", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["child", "orphan"])
def test_a_process_of_an_agent_that_hides_its_mark_is_found_beside_it(kind: str, tmp_path: Path) -> None:
    source = f"HIDES, KIND = {_HIDES!r}, {kind!r}\n{_STARTS}"
    agent = shared_processes().spawn_agent(
        [sys.executable, "-S", "-c", source], mark="t.1.1", env={}, cwd=tmp_path, lease_ends=math.inf
    )
    while not agent.read_output(0.1):
        pass

    def hidden() -> set[int]:
        return {
            pid
            for pid in process_tags.find_agent_processes(agent.pid, "t.1.1")
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
        }

    (pid,) = wait_for(hidden)
    assert dict(process_tags.process_tags())[pid] == ""
    assert kind == "child" or process_tags.parent_of(pid) == shared_processes().start_guard()
    agent.close()

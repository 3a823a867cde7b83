"""A whole turn whose agent runs in a sandbox: it is recorded, and the sandbox dies with its worker."""

import secrets
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.installation import WorkerProcess, asked
from tests.runs import ordered
from tests.support import processes_with, put, wait_until
from worker.runners.base import ToolOrders
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.launch import Launch, _sandbox_launch

#: So long sleeps the child of this run's agent: without a mark it is found by that.
CHILD = f"600.{secrets.randbelow(10**6) + 10**6}1"
SCRIPT = f"""
- attempts:
    - - say: "Ein Anfang"
      - fork: {{seconds: {CHILD}, scrub: true}}
      - hang:
"""
GOOD = '- attempts: [[{say: "Gut.\\n\\n<!-- STEP: done -->"}]]'


@pytest.fixture
def sandboxed(settings: Settings, tmp_path: Path) -> Settings:
    if problem := bubblewrap.find_obstacle():
        pytest.skip(problem)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    return replace(settings, sandbox="required", lease_seconds=1.5, models={"m": f"scripted:{tmp_path}/script.yaml"})


async def test_a_boxed_agent_dies_with_its_worker_and_the_next_one_answers_from_a_box(
    sandboxed: Settings, worker_process: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    first = worker_process(settings=sandboxed)
    async with TurnsClient(sandboxed) as client:
        turn_id = await client.submitter.submit(asked("Hallo", "s", model="m"))
        async for event in client.reader.follow_turn(turn_id):
            if event is not None and event.kind == "attempt.output":
                break
        mark = f"HELIX_AGENT_MARK={turn_id}."
        assert any("bwrap" in command for command in processes_with(mark).values())
        first.kill()
        await wait_until(lambda: not processes_with(mark) and not processes_with(f"time.sleep({CHILD}"))
        put(tmp_path / "script.yaml", GOOD)
        worker_process(settings=sandboxed)
        turn = await client.reader.await_result(turn_id, timeout=60)
        (attempt,) = await client.reader.read_attempts(turn_id)
    assert turn.outcome is Outcome.PASSED
    assert attempt.completion["evidence"]["sandbox"] == "bubblewrap"


@pytest.mark.parametrize("do", ["deny", "ask"])
def test_a_folder_that_no_tool_may_touch_is_empty_in_the_box(tmp_path: Path, do: str) -> None:
    if problem := bubblewrap.find_obstacle():
        pytest.skip(problem)
    for name in ("secrets/deep", "work/run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secrets/key.txt").write_text("top")
    (tmp_path / "secrets/deep/key.txt").write_text("top")
    (tmp_path / "one.txt").write_text("top")
    rules = tuple({"folder": name, "do": do} for name in ("secrets/*", "one.txt", "work/*", "gone/*", "../*"))
    tools = ToolOrders(rules=rules, root=tmp_path)
    order = ordered(tmp_path, "turn-a", 1, "x", tools=tools, directory=tmp_path / "work/run")
    order.directory.mkdir(exist_ok=True)
    script = f"cat {tmp_path}/secrets/key.txt {tmp_path}/secrets/*/* {tmp_path}/one.txt; touch x {tmp_path}/secrets/x"
    launch = Launch(argv=["sh", "-c", script], env={}, stdin=b"", binds=[SandboxMount(tmp_path)])
    done = subprocess.run(
        _sandbox_launch(launch, order, bubblewrap.Isolation("bubblewrap"), None).argv, capture_output=True, text=True
    )
    assert done.stdout == ("" if do == "deny" else "toptoptop")
    assert (order.directory / "x").exists()
    assert not (tmp_path / "secrets/x").exists()

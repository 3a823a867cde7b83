"""Agents that flood, hang, leave children behind, refuse to end or kill their worker harm only their own turn."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.fault.conftest import judged
from tests.fault.matrix import Runs, Stage, left_in_store
from tests.installation import asked
from tests.support import processes_with, wait_until
from worker.runners.sandbox.process_tags import parent_of

#: So long sleep the children that scripts leave behind: they are found without a mark, and are this run's own.
CHILD = f"600.{secrets.randbelow(10**6) + 10**6}"
SCRIPT = """
- when: "[flood text]"
  attempts: [[{flood: 104857600}]]
- when: "[flood line]"
  attempts: [[{flood: {size: 104857600, kind: line}}]]
- when: "[flood noise]"
  attempts: [[{flood: {size: 104857600, kind: noise}}, {say: "Viel Lärm.\\n\\n<!-- STEP: done -->"}]]
- when: "[stubborn]"
  attempts: [[ignore_sigterm, {fork: {seconds: {child}1}}, {fork: {seconds: {child}2, scrub: true}}, {say: "x"}, hang]]
- when: "[silent]"
  attempts: [[{say: "x"}, hang]]
- when: "[cut]"
  attempts: [[{say: "Halb"}, cut]]
- when: "[leaves children]"
  attempts:
    - [{fork: {seconds: {child}3}}, {fork: {seconds: {child}4, scrub: true}}, {say: "Gut.\\n\\n<!-- STEP: done -->"}]
- when: "[orphans]"
  attempts: [[{fork: {seconds: {child}5}}, {say: "x"}, {wait_for: "{meet}/go"}, {say: "Gut.\\n\\n<!-- STEP: done -->"}]]
- when: "[poison]"
  attempts: [[{say: "x"}, kill_parent]]
- when: "[long answer]"
  attempts: [[{flood: 65536}, {say: "\\n\\n<!-- STEP: done -->"}]]
- when: "[held "
  attempts: [[{say: "Ich fange an ... "}, {wait_for: "{meet}/go"}, {say: "fertig.\\n\\n<!-- STEP: done -->"}]]
- attempts: [[{say: "Sofort.\\n\\n<!-- STEP: done -->"}]]
""".replace("{child}", CHILD)
#: Largest growth of a worker that reads a flood, in bytes: an answer, a line, and what it takes to keep them.
MOST_GROWTH = 200 * 2**20


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    grace = Settings().kill_grace_seconds
    with Stage(
        tmp_path_factory.mktemp("agents"), SCRIPT, transient_delay_seconds=0.1, kill_grace_seconds=grace
    ) as made:
        made.start(workers=1)
        yield made


@pytest.fixture(autouse=True)
def nothing_left_behind(stage: Stage) -> Iterator[None]:
    """End agents and their children that a failed test left behind."""
    yield
    (stage.meet / "go").touch()
    for pid in processes_with(f"sleep({CHILD}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def until(client: TurnsClient, turn_id: str, kind: str) -> None:
    async with asyncio.timeout(60):
        async for event in client.reader.follow_turn(turn_id):
            if event is not None and event.kind == kind:
                return


def tree_of(turn_id: str) -> dict[int, str]:
    """Return the processes that an agent started, however they hide."""
    return {
        pid: line
        for marker in (f"HELIX_AGENT_MARK={turn_id}", f"sleep({CHILD}")
        for pid, line in processes_with(marker).items()
    }


def peak_bytes(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    ("kind", "outcome", "code"),
    [("text", Outcome.ERROR, "limit"), ("line", Outcome.ERROR, "limit"), ("noise", Outcome.PASSED, None)],
)
async def test_a_flood_is_bounded_and_harms_no_other_turn(
    kind: str, outcome: Outcome, code: str | None, stage: Stage, client: TurnsClient
) -> None:
    worker = stage.workers[0].children()["1"]
    before = peak_bytes(worker)
    (stage.meet / "go").unlink(missing_ok=True)
    neighbour = await client.submitter.submit(asked("[held up]", f"beside {kind}"))
    await until(client, neighbour, "attempt.output")
    turn, _ = await judged(client, await client.submitter.submit(asked(f"[flood {kind}]", f"flood {kind}")))
    assert (turn.outcome, turn.error.code if turn.error else None) == (outcome, code)
    assert peak_bytes(worker) - before < MOST_GROWTH
    (stage.meet / "go").touch()
    other, _ = await judged(client, neighbour)
    assert (other.outcome, other.delivery, other.strikes) == (Outcome.PASSED, 1, 0)
    assert not tree_of(turn.turn_id)


async def test_output_that_closes_early_is_no_answer(client: TurnsClient) -> None:
    turn, _ = await judged(client, await client.submitter.submit(asked("[cut]", "cut")))
    assert (turn.outcome, turn.attempt, turn.response) == (Outcome.INCOMPLETE, 3, "")


async def test_children_an_agent_leaves_behind_are_gone_when_its_answer_counts(client: TurnsClient) -> None:
    turn_id = await client.submitter.submit(asked("[leaves children]", "children"))
    await until(client, turn_id, "attempt.completed")
    assert not tree_of(turn_id)
    turn, _ = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED


async def test_what_an_agent_started_dies_before_the_next_delivery_when_worker_and_guard_were_killed_together(
    stage: Stage, client: TurnsClient, runs: Runs
) -> None:
    (stage.meet / "go").unlink(missing_ok=True)
    turn_id = await client.submitter.submit(asked("[orphans]", "orphans"))
    await until(client, turn_id, "attempt.output")
    first = f"HELIX_AGENT_MARK={turn_id}.1.1"
    await wait_until(lambda: any("sleep" in line for line in processes_with(first).values()))
    assert runs.of(turn_id) == {1}
    worker, guard = stage.workers[0].children()["1"], parent_of(runs.starts[turn_id, 1]["pid"])
    os.kill(guard, signal.SIGSTOP)  # so that it ends nothing in the moment between the two
    os.kill(worker, signal.SIGKILL)
    os.kill(guard, signal.SIGKILL)
    await wait_until(lambda: 2 in runs.of(turn_id))
    assert not processes_with(first), "the second delivery began beside what the first had left"
    (stage.meet / "go").touch()
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery) == (Outcome.PASSED, 2)
    assert not tree_of(turn_id)


async def test_a_cancelled_agents_whole_tree_is_gone_and_only_then_the_session_goes_on(
    stage: Stage, client: TurnsClient, runs: Runs
) -> None:
    turn_id = await client.submitter.submit(asked("[stubborn]", "cancelled"))
    following = await client.submitter.submit(asked("next", "cancelled"))
    await until(client, turn_id, "attempt.output")
    await wait_until(lambda: len(tree_of(turn_id)) == 3)
    assert (await client.canceller.cancel(turn_id)).stop == "cancelled"
    assert (await client.canceller.cancel(turn_id)).stop == "cancelled", "a second cancel changes nothing"
    await until(client, following, "attempt.started")
    assert not tree_of(turn_id), "the session went on before the tree was gone"
    turn, events = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery, turn.strikes) == (Outcome.CANCELLED, 1, 0)
    assert [event.kind for event in events].count("turn.stopping") == 1
    assert (await client.canceller.cancel(turn_id)) == turn, "a finished turn stays as it is"
    assert (await judged(client, following))[0].outcome is Outcome.PASSED
    assert runs.of(turn_id) == {1}
    assert left_in_store(stage, "cancelled") == []


async def test_a_deadline_ends_the_agent_and_the_session_goes_on(stage: Stage, client: TurnsClient) -> None:
    turn_id = await client.submitter.submit(replace(asked("[silent]", "late"), deadline_seconds=6.0))
    following = await client.submitter.submit(asked("next", "late"))
    await until(client, turn_id, "attempt.output")
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, turn.error.code) == (Outcome.EXPIRED, "expired")
    assert turn.finished_at - turn.created_at >= 6.0
    assert not tree_of(turn_id)
    assert (await judged(client, following))[0].outcome is Outcome.PASSED


async def test_a_session_folder_that_cannot_be_made_is_that_sessions_trouble_and_heals(
    stage: Stage, client: TurnsClient
) -> None:
    sessions = stage.settings.sessions_dir
    sessions.mkdir(parents=True, exist_ok=True)
    in_the_way = sessions / "blocked"
    in_the_way.touch()
    turn, _ = await judged(client, await client.submitter.submit(asked("hello", "blocked")))
    assert (turn.outcome, turn.error.code, turn.attempt) == (Outcome.ERROR, "transient", 1)
    other, _ = await judged(client, await client.submitter.submit(asked("hello", "not blocked")))
    assert other.outcome is Outcome.PASSED
    in_the_way.unlink()
    healed, _ = await judged(client, await client.submitter.submit(asked("hello", "blocked")))
    assert healed.outcome is Outcome.PASSED


@pytest.fixture
def full_disk(stage: Stage) -> Iterator[str]:
    """Provide a session whose folder is on a file system without room for an answer."""
    folder = stage.settings.sessions_dir / "full"
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield "full"
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_costs_nobody_an_accepted_answer(full_disk: str, client: TurnsClient, stage: Stage) -> None:
    turn, _ = await judged(client, await client.submitter.submit(asked("[long answer]", full_disk)))
    assert turn.outcome is Outcome.PASSED
    assert len(turn.response) > 65536
    output = stage.settings.sessions_dir / full_disk / "output"
    assert not (output / ".done").exists(), ".done names an answer that is not there"


async def test_a_turn_that_kills_its_worker_each_time_is_given_up_and_no_other_turn_is(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, SCRIPT, strikes=3) as stage:
        stage.start(workers=2)
        async with TurnsClient(stage.settings) as client:
            runs = Runs(stage.action_log)
            beside = [
                await client.submitter.submit(asked(f"[held {number}]", f"beside {number}")) for number in range(4)
            ]
            for turn_id in beside:
                await until(client, turn_id, "attempt.output")
            turn_id = await client.submitter.submit(asked("[poison]", "poisoned"))
            following = await client.submitter.submit(asked("next", "poisoned"))
            turn, events = await judged(client, turn_id)
            assert (turn.outcome, turn.strikes, turn.delivery) == (Outcome.DEAD, 3, 3)
            assert [event.kind for event in events].count("attempt.lost") == 3
            assert runs.of(turn_id) == {1, 2, 3}
            assert (await judged(client, following))[0].outcome is Outcome.PASSED
            (stage.meet / "go").touch()
            for other in beside:
                assert (await judged(client, other))[0].outcome is Outcome.PASSED
            with stage.store as store:
                assert store.zrange(stage.keys.dead, 0, -1) == [turn_id.encode()]
            await wait_until(lambda: not tree_of(turn_id))
            runs.close()

"""An accepted answer and its files: cancels in time or too late, and workers that die while publishing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome, Turn
from tests import records
from tests.fault.conftest import judged
from tests.fault.matrix import Runs, Stage, left_in_store
from tests.installation import asked as message

SCRIPT = """
- when: "[no marker]"
  attempts: [[{say: "Ohne Marker."}]]
- attempts: [[{say: "Sofort.\\n\\n<!-- STEP: done -->"}]]
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("accepting"), SCRIPT) as made:
        made.start(workers=1)
        yield made


def published(stage: Stage, session_id: str) -> str:
    folder = stage.settings.sessions_dir / session_id / "output"
    answer, done = folder / "response.md", folder / ".done"
    assert answer.exists() == done.exists()
    return answer.read_text() if answer.exists() else ""


async def stopped_at(stage: Stage, client: TurnsClient, point: str, session_id: str) -> tuple[str, Path]:
    """Return a turn whose worker waits at a failpoint, and the file that lets the worker continue."""
    go = stage.meet / f"{session_id}.go"
    stage.arm(point, f"meet:{go}")
    turn_id = await client.submitter.submit(message("hello", session_id))
    await stage.fired(point)
    return turn_id, go


async def test_a_cancel_before_an_answer_is_sealed_leaves_no_answer_behind(stage: Stage, client: TurnsClient) -> None:
    turn_id, go = await stopped_at(stage, client, "answer.accepted", "in-time")
    await client.canceller.cancel(turn_id)
    go.touch()
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, turn.response) == (Outcome.CANCELLED, "")
    assert published(stage, "in-time") == ""


@pytest.mark.parametrize("point", ["answer.sealed", "answer.published"])
async def test_a_cancel_while_an_answer_is_published_is_too_late(point: str, stage: Stage, client: TurnsClient) -> None:
    session_id = f"too-late-{point}"
    turn_id, go = await stopped_at(stage, client, point, session_id)
    asked = await client.canceller.cancel(turn_id)
    assert (asked.outcome, asked.stop) == (None, "")
    go.touch()
    turn, events = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED
    assert "turn.stopping" not in [event.kind for event in events]
    assert published(stage, session_id) == turn.response


@pytest.mark.parametrize("point", ["answer.sealed", "answer.published"])
async def test_an_answer_whose_worker_dies_while_it_publishes_is_finished_by_another_and_not_judged_again(
    point: str, stage: Stage, client: TurnsClient, runs: Runs
) -> None:
    session_id = f"dead-{point}"
    stage.arm("validation.started", "sleep:0@99")  # every pass leaves a mark
    stage.arm(point, "kill")
    turn_id = await client.submitter.submit(message("hello", session_id))
    await stage.fired(point)
    # Between the holders neither a cancel nor the deadline may end it: its files may be there already.
    assert (await client.canceller.cancel(turn_id)).outcome is None
    with stage.store as store:
        store.hset(stage.keys.turn(turn_id), "deadline_at", 1)
        store.zadd(stage.keys.due, {turn_id: 1})
    turn, _ = await judged(client, turn_id)
    assert (turn.outcome, turn.delivery, turn.strikes) == (Outcome.PASSED, 1, 1)
    assert published(stage, session_id) == turn.response
    assert runs.of(turn_id) == {1}
    assert [mark.name for mark in stage.points.glob("validation.started.*")] == ["validation.started.1"], (
        "it was judged again"
    )
    assert left_in_store(stage, session_id) == []


async def test_what_the_fallback_repaired_is_published_by_whoever_finishes_it(
    stage: Stage, client: TurnsClient
) -> None:
    stage.arm("answer.sealed", "kill")
    request = replace(message("[no marker]", "repaired"), max_attempts=1)
    turn, _ = await judged(client, await client.submitter.submit(request))
    assert turn.outcome is Outcome.PASSED_BY_FALLBACK
    assert published(stage, "repaired") == turn.response
    assert "STEP:" in turn.response


async def test_a_turn_and_its_record_forget_what_was_sealed(stage: Stage, client: TurnsClient) -> None:
    turn: Turn = await client.reader.await_result(await client.submitter.submit(message("hello", "forgotten")))
    with stage.store as store:
        assert not records.record(store, stage.keys, turn.turn_id).get("accepted")

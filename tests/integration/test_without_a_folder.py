"""An answer whose agent did not work in the session's folder: it is published all the same, and only by the holder."""

from pathlib import Path
from typing import Any

import pytest

from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState
from tests.integration.engine import FIRST, GOOD, JUDGE, NO_MARKER, Bench, says
from worker.files.session_fence import HELD, SessionFolder
from worker.files.workspace import check_session_done
from worker.turns import publisher
from worker.turns.work import TurnWork

BETTER = "Besser.\n\n<!-- STEP: done -->"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.runner.needs_folder = False
    return bench


def session(bench: Bench) -> Path:
    return bench.settings.sessions_dir / "s"


async def test_its_answer_is_published_and_nothing_is_held(bench: Bench) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert check_session_done(session(bench))
    assert sorted(path.name for path in session(bench).rglob("*")) == [".done", "output", "response.md", "status.json"]
    assert (session(bench) / "output" / "response.md").read_text() == GOOD


async def test_the_mark_of_the_answer_before_goes_when_the_next_message_is_worked_on(bench: Bench) -> None:
    await bench.outcome(says(GOOD))
    turn_id = await bench.submit(says(BETTER))
    bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
    assert not check_session_done(session(bench))
    bench.carry_out(turn_id, JUDGE)
    assert (session(bench) / "output" / "response.md").read_text() == BETTER
    assert not (session(bench) / HELD).exists(), "no agent works in files here: no later turn needs a fence either"


async def test_in_a_session_in_which_agents_worked_with_files_it_is_fenced_as_they_are(bench: Bench) -> None:
    bench.runner.needs_folder = True
    await bench.outcome(says(GOOD))
    bench.runner.needs_folder = False
    turn_id = await bench.submit(says(BETTER))
    bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
    late = session(bench) / HELD / "late"
    late.mkdir()
    bench.carry_out(turn_id, JUDGE)
    assert (session(bench) / "output" / "response.md").read_text() == BETTER
    assert not late.exists(), "who held the folder before can no longer write"


async def test_an_answer_whose_place_a_late_worker_took_is_published_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.runner.needs_folder = True
    put, places = TurnWork.publish, []

    def overtaken(work: TurnWork, settings: Settings, holder: SessionFolder, *rest: object) -> None:
        if not places:
            places.extend((session(bench) / HELD).iterdir())
            places[0].rmdir()
        put(work, settings, holder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(TurnWork, "publish", overtaken)
    turn = await bench.outcome(says(GOOD))
    assert turn.outcome is Outcome.PASSED
    assert len(places) == 1, "the place of the run was kept for the answer"
    assert check_session_done(session(bench))
    assert list((session(bench) / HELD).iterdir()) == []


async def test_a_cancel_before_the_seal_publishes_nothing(bench: Bench) -> None:
    turn_id = await bench.submit(says(GOOD))
    bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
    seal = bench.on_loop.seal_answer

    async def cancelled_first(*given: Any) -> bool:
        bench.ledger.cancel_turn(turn_id, "s")
        return await seal(*given)

    bench.on_loop.seal_answer = cancelled_first  # type: ignore[method-assign, assignment]
    bench.carry_out(turn_id, JUDGE)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED
    assert not session(bench).exists()


async def test_a_sick_host_gives_the_judged_answer_to_another(bench: Bench) -> None:
    turn_id = await bench.submit(says(GOOD))
    bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
    session(bench).parent.mkdir(parents=True)
    session(bench).write_text("no folder can be made here")
    bench.trouble = "the disk is read-only"
    bench.carry_out_one(JUDGE, turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, turn.strikes) == (TurnState.RAN, str(JUDGE), 0)
    session(bench).unlink()
    bench.trouble = ""
    bench.host.probe_now()
    bench.announced.clear()
    bench.carry_out(turn_id, JUDGE)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.attempt, turn.delivery) == (Outcome.PASSED, 1, 1)
    assert check_session_done(session(bench))


async def test_a_holder_that_dies_behind_the_seal_is_followed_by_one_that_publishes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_id = await bench.submit(says(GOOD))
    bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
    with monkeypatch.context() as dying:
        dying.setattr(publisher, "_write_files", _dies)
        with pytest.raises(SystemError):
            bench.carry_out_one(JUDGE, turn_id)
    assert not check_session_done(session(bench))
    bench.store.hset(bench.keys.turn(turn_id), "lease_until", 1)
    bench.ledger.recall_turns()
    assert bench.ledger.reap_turn(turn_id, may_take=True).chain_task == str(JUDGE)
    bench.carry_out(turn_id, JUDGE)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED
    assert check_session_done(session(bench))


def _dies(*_: object) -> None:
    raise SystemError("as if the process had died here")

"""The engine on a real store, without Celery: which outcome follows from what the agent does."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.turns.record.backlog import _parse_turn_id
from tests.integration.engine import ADR, FIRST, GOOD, JUDGE, NO_MARKER, Bench, Play, ends, says, waits_for_stop, writes
from tests.support import wait_until
from worker.enforcement.validator_process import MOST_CHARACTERS
from worker.files.workspace import MAX_FILE, check_session_done
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop

SPOILERS = [
    lambda path: path.write_bytes(b"x" * (MAX_FILE + 1)),
    lambda path: path.symlink_to("/etc/passwd"),
    lambda path: os.mkfifo(path),
]


@pytest.mark.parametrize("spoil", SPOILERS, ids=["too-large", "link", "fifo"])
async def test_an_answer_file_that_is_not_taken_is_asked_for_again(bench: Bench, spoil: Callable[[Path], None]) -> None:
    turn = await bench.outcome(writes(spoil), says(GOOD))
    first = (await bench.client.reader.read_attempts(turn.turn_id))[0]
    assert (turn.outcome, turn.response, turn.attempt) == (Outcome.PASSED_AFTER_RETRY, GOOD, 2)
    assert [issue.code for issue in first.issues] == ["ANSWER_FILE_REFUSED"]
    assert "output/response.md" in first.feedback


async def test_a_turn_whose_answer_files_are_never_taken_fails_and_says_why(bench: Bench) -> None:
    """No fallback makes the words beside the file the answer."""
    turn = await bench.outcome(*[writes(SPOILERS[1], NO_MARKER)] * 3)
    assert turn.outcome is Outcome.FAILED
    assert any(issue.code == "ANSWER_FILE_REFUSED" for issue in turn.error.issues)


async def test_a_good_answer_passes_at_once(bench: Bench) -> None:
    turn = await bench.outcome(says(GOOD))
    assert (turn.outcome, turn.response, turn.step, turn.step_source) == (Outcome.PASSED, GOOD, "done", "marker")
    assert (turn.attempt, turn.delivery) == (1, 1)


async def test_a_megabyte_of_conversation_and_answers_too_long_to_be_judged_there_hold_up_the_loop_in_no_step(
    bench: Bench,
) -> None:
    """What ``bench`` says when it is closed (``tests/blocking.py``)."""
    said = "Ein Satz, der gilt. " * 50_000
    long = ADR + "\n\nEin Absatz mit `code` und **Nachdruck**." * (2 * MOST_CHARACTERS // 40)
    turn = await bench.outcome(*[says(long)] * 3, messages=({"role": "user", "content": said},))
    assert (turn.outcome, turn.attempt) == (Outcome.FAILED, 3)


async def test_an_answer_without_a_marker_is_asked_again_with_feedback(bench: Bench) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    feedback = bench.runner.orders[1].prompt
    assert "MISSING_STEP_MARKER" in feedback
    first, second = await bench.client.reader.read_attempts(turn.turn_id)
    assert (first.decision, second.decision) == ("retry", "accept")
    assert first.feedback == feedback == second.prompt
    assert [issue.code for issue in first.issues] == ["MISSING_STEP_MARKER"]
    kinds = [event.kind for event in await bench.events(turn)]
    assert kinds == [
        "turn.queued",
        "attempt.started",
        "attempt.output",
        "attempt.completed",
        "attempt.rejected",
        "turn.retrying",
        "attempt.started",
        "attempt.output",
        "attempt.completed",
        "attempt.accepted",
        "turn.finished",
    ]


async def test_an_agent_that_dies_in_mid_answer_is_run_again_and_its_fragment_is_never_judged(bench: Bench) -> None:
    turn = await bench.outcome(ends(Verdict.INCOMPLETE), says(GOOD))
    assert (turn.outcome, turn.retries) == (Outcome.PASSED_AFTER_RETRY, 0)
    first, _ = await bench.client.reader.read_attempts(turn.turn_id)
    assert (first.completion["verdict"], first.issues) == ("incomplete", ())


async def test_a_marker_that_never_comes_is_inferred_by_the_fallback_and_told_as_such(bench: Bench) -> None:
    text = "Es gibt zwei Wege. Welchen willst du?"
    turn = await bench.outcome(*[says(text)] * 3)
    assert turn.outcome is Outcome.PASSED_BY_FALLBACK
    assert turn.response.startswith(text)
    assert turn.step == "what"
    assert turn.step_source not in {"", "marker"}
    [repaired] = [event for event in await bench.events(turn) if event.kind == "turn.mended"]
    assert repaired.data["changes"]


async def test_an_adr_that_never_gets_its_sections_fails_with_an_error_its_user_understands(bench: Bench) -> None:
    turn = await bench.outcome(*[says(ADR)] * 3)
    assert (turn.outcome, turn.response) == (Outcome.FAILED, "")
    assert "MISSING_ADR_SECTION" in turn.error.message
    assert turn.error.message.startswith("The LLM response could not be validated:")
    assert {issue.code for issue in turn.error.issues} >= {"MISSING_ADR_SECTION"}


async def test_a_turn_whose_last_run_broke_off_ends_incomplete(bench: Bench) -> None:
    turn = await bench.outcome(*[ends(Verdict.INCOMPLETE)] * 3, locale="de")
    assert (turn.outcome, turn.attempt, turn.response) == (Outcome.INCOMPLETE, 3, "")
    assert "the agent died" in turn.error.reason
    assert "Er brach vorzeitig ab." in turn.error.message


async def test_a_permanent_error_ends_the_turn_and_uses_no_further_attempt(bench: Bench) -> None:
    turn = await bench.outcome(ends(Verdict.ERROR, ErrorKind.PERMANENT))
    assert (turn.outcome, turn.attempt, turn.error.code) == (Outcome.ERROR, 1, "permanent")


def breaks_its_promise(error: Exception | None) -> Play:
    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        if error:
            raise error
        return "just a text"  # type: ignore[return-value]

    return play


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("sk-secret"), "runner 'scripted' raised KeyError; the worker's log has its text (runner.raised)"),
        (None, "runner 'scripted' returned str; it must return a RunResult"),
    ],
)
async def test_a_runner_that_raises_or_returns_something_else_ends_the_turn_and_no_worker_died(
    bench: Bench, error: Exception | None, said: str
) -> None:
    turn = await bench.outcome(breaks_its_promise(error))
    assert (turn.outcome, turn.delivery) == (Outcome.ERROR, 1)
    (attempt,) = await bench.client.reader.read_attempts(turn.turn_id)
    assert attempt.completion["reason"] == said


async def test_a_runner_that_cannot_reach_its_service_is_run_again(bench: Bench) -> None:
    turn = await bench.outcome(breaks_its_promise(ConnectionError("refused")), says(GOOD))
    assert (turn.state, turn.next, turn.attempt) == (TurnState.QUEUED, "turn.run/1", 1)


async def test_a_passing_error_is_waited_for_and_uses_up_no_attempt(bench: Bench) -> None:
    turn_id = await bench.submit(ends(Verdict.ERROR, ErrorKind.TRANSIENT), says(GOOD), max_attempts=1)
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, turn.attempt) == (TurnState.QUEUED, "turn.run/1", 1)
    await wait_until(lambda: bench.ledger.reap_turn(turn_id, may_take=True).what == "announce")
    bench.carry_out(turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED


async def test_a_cancel_stops_the_running_agent_and_ends_the_turn(bench: Bench) -> None:
    turn_id = await bench.submit(waits_for_stop)
    working = threading.Thread(target=bench.carry_out, args=(turn_id,))
    working.start()
    await wait_until(lambda: bench.runner.orders)
    await bench.client.canceller.cancel(turn_id)
    assert (await bench.client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.CANCELLED
    working.join()


async def test_a_turn_whose_deadline_comes_while_its_agent_runs_expires(bench: Bench) -> None:
    turn = await bench.outcome(waits_for_stop, deadline_seconds=0.5)
    assert turn.outcome is Outcome.EXPIRED


async def test_a_worker_that_shuts_down_hands_its_turn_over_without_a_strike(bench: Bench) -> None:
    turn_id = await bench.submit(waits_for_stop, says(GOOD))
    link = ChainTask(RUN, 1)
    working = threading.Thread(target=bench.carry_out_one, args=(link, turn_id))
    working.start()
    await wait_until(lambda: bench.runner.orders)
    bench.leases.stop_all("shutdown")
    working.join()
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.strikes, bench.announced) == (TurnState.QUEUED, 0, [(link, turn_id, "s")])
    bench.announced.clear()
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.attempt, turn.delivery) == (Outcome.PASSED, 1, 2)


async def test_a_doubled_message_is_refused_and_its_chain_dropped(bench: Bench) -> None:
    turn = await bench.outcome(says(GOOD))
    bench.carry_out_one(ChainTask(RUN, 1), turn.turn_id)
    assert (len(bench.runner.orders), bench.announced) == (1, [])


async def test_the_accepted_answer_is_published_to_the_session_folder(bench: Bench) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    [response] = bench.settings.sessions_dir.rglob("output/response.md")
    assert response.read_text() == GOOD
    assert turn.turn_id in (response.parent / ".done").read_text()


async def test_a_runner_that_needs_no_folder_leaves_the_accepted_answer_alone(bench: Bench) -> None:
    def nowhere(text: str) -> Play:
        def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
            assert not order.directory.exists()
            assert not check_session_done(order.workdir)
            return says(text)(order, emit, stop)

        return play

    bench.runner.needs_folder = False
    folder = bench.settings.sessions_dir / "s"
    for _ in range(2):
        turn = await bench.outcome(nowhere(NO_MARKER), nowhere(GOOD))
        assert turn.outcome is Outcome.PASSED_AFTER_RETRY
        found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        assert found == ["output/.done", "output/response.md", "status.json"]
        assert turn.turn_id in (folder / "output" / ".done").read_text()
        assert json.loads((folder / "status.json").read_text())["turn_id"] == turn.turn_id


class InLoop:
    """An agent in the event loop that says all it has to say at once: nothing is appended before it has ended."""

    name, needs_folder = "in-loop", False

    def __init__(self) -> None:
        self.plays: list[Play] = []

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        for word in ("Alles ", "klar.", "\n\n<!-- STEP: done -->"):
            emit(AgentEvent(kind="output", text=word))
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="exit 0"), text=GOOD)


async def test_output_that_waits_when_the_agent_ends_is_in_the_log_before_its_end(bench: Bench) -> None:
    bench.runner = InLoop()  # type: ignore[assignment]
    turn = await bench.outcome()
    told = [(event.kind, event.data.get("text")) for event in await bench.events(turn)]
    assert (turn.outcome, turn.response) == (Outcome.PASSED, GOOD)
    at = told.index(("attempt.output", GOOD))
    assert [kind for kind, _ in told[at - 1 : at + 2]] == ["attempt.started", "attempt.output", "attempt.completed"]


async def test_a_session_folder_that_cannot_be_written_is_a_passing_error(bench: Bench) -> None:
    bench.settings.sessions_dir.mkdir(parents=True)
    (bench.settings.sessions_dir / "s").write_text("a file where the session's folder should be")
    turn_id = await bench.submit(says(GOOD))
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.transients) == (TurnState.QUEUED, 1)


async def test_a_sick_host_gives_the_turn_back_unharmed_and_takes_none_until_it_is_well(bench: Bench) -> None:
    blocked = bench.settings.sessions_dir
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where the folder of all sessions should be")
    turn_id = await bench.submit(says(GOOD))
    bench.carry_out_one(FIRST, turn_id)
    given_back = await bench.client.reader.read_turn(turn_id)
    assert (given_back.state, given_back.transients, given_back.strikes) == (TurnState.QUEUED, 0, 0)
    assert given_back.next == str(FIRST)
    for _ in range(2):
        assert bench.announced.pop() == (FIRST, turn_id, "s"), "somebody else is to have it"
        bench.carry_out_one(FIRST, turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).delivery == 1, "a sick host claims nothing"
    blocked.unlink()
    assert not bench.host.probe_now()
    bench.announced.clear()
    bench.carry_out(turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED


async def test_a_process_that_ends_claims_nothing_and_gives_back_at_once_what_has_not_started(bench: Bench) -> None:
    turn_id = await bench.submit(says(GOOD))
    asked = iter([False, True, True])  # it is asked to end between the claim and the start of the agent
    bench.ends = lambda: next(asked)
    bench.carry_out_one(FIRST, turn_id)
    given_back = await bench.client.reader.read_turn(turn_id)
    assert (given_back.state, given_back.next, given_back.strikes) == (TurnState.QUEUED, str(FIRST), 0)
    assert bench.announced.pop() == (FIRST, turn_id, "s")
    bench.carry_out_one(FIRST, turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).delivery == 1, "it claims nothing more"
    assert bench.announced.pop() == (FIRST, turn_id, "s"), "somebody else is to have it"
    assert not bench.runner.orders
    bench.ends = lambda: False
    bench.carry_out(turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED


async def test_an_answer_that_a_sick_host_cannot_publish_is_judged_and_published_by_another(bench: Bench) -> None:
    turn_id = await bench.submit(says(GOOD))
    bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
    assert bench.announced.pop() == (JUDGE, turn_id, "s")
    held, bench.trouble = bench.settings.sessions_dir / "s" / ".held", "the disk is read-only"
    shutil.rmtree(held)
    held.write_text("no folder can be made here")
    bench.carry_out_one(JUDGE, turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, turn.strikes) == (TurnState.RAN, str(JUDGE), 0)
    assert bench.announced.pop() == (JUDGE, turn_id, "s")
    held.unlink()
    bench.trouble = ""
    bench.host.probe_now()
    bench.carry_out(turn_id, JUDGE)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.attempt, turn.delivery) == (Outcome.PASSED, 1, 1)
    assert list(bench.settings.sessions_dir.rglob("output/.done"))


async def test_the_next_turn_of_the_session_is_announced_when_this_one_ends(bench: Bench) -> None:
    first = await bench.submit(says(GOOD), says(GOOD))
    second = await bench.submit()
    queue = f"{bench.settings.namespace}:celery:helix.run"
    await bench.client.store.await_reply(bench.client.store.redis.delete(queue))  # the first one's
    bench.carry_out(first)
    [message] = await bench.client.store.await_reply(bench.client.store.redis.lrange(queue, 0, -1))
    assert _parse_turn_id(message) == second
    bench.carry_out(second)
    assert (await bench.client.reader.read_turn(second)).outcome is Outcome.PASSED


async def test_a_turn_whose_record_the_store_lost_is_reported_as_lost(bench: Bench) -> None:
    turn_id = await bench.submit(waits_for_stop)

    def work() -> None:
        with capture_logs() as told:
            bench.carry_out_one(FIRST, turn_id)
        bench.told = told

    working = threading.Thread(target=work)
    working.start()
    await wait_until(lambda: bench.runner.orders)
    bench.store.delete(bench.keys.turn(turn_id))
    working.join(60)
    assert "turn.record_lost" in [line["event"] for line in bench.told]
